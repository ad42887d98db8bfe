//! Durations on the command line and in the report.

use std::time::Duration;

/// Reads `2`, `0.5`, `500ms`, `10s`, `2m` or `1h`; a bare number is seconds.
pub fn parse(text: &str) -> Result<Duration, String> {
    const EXPECTED: &str = "expected seconds, or a number with ms, s, m or h: 2, 0.5, 500ms, 2m";
    let unit_start = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_start);
    let seconds_per_unit = match unit {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(EXPECTED.into()),
    };
    let number: f64 = number.parse().map_err(|_| EXPECTED)?;
    Duration::try_from_secs_f64(number * seconds_per_unit).map_err(|_| EXPECTED.into())
}

/// Clocks end somewhere.
const LONGEST_PERIOD: Duration = Duration::from_secs(365 * 24 * 3600);

/// As [`parse`], but not 0: a period of nothing would never end.
pub fn parse_period(text: &str) -> Result<Duration, String> {
    match parse(text)? {
        Duration::ZERO => Err("an interval must be longer than 0".into()),
        period if period > LONGEST_PERIOD => Err("an interval must be shorter than a year".into()),
        period => Ok(period),
    }
}

/// Two significant digits or more, in the unit that fits: `850 µs`, `9.1 ms`, `131 ms`, `1.25 s`.
pub fn show(duration: Duration) -> String {
    let us = duration.as_secs_f64() * 1e6;
    match us {
        ..999.5 => format!("{us:.0} µs"),
        ..9_950.0 => format!("{:.1} ms", us / 1e3),
        ..999_500.0 => format!("{:.0} ms", us / 1e3),
        _ => format!("{:.2} s", us / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periods_are_neither_nothing_nor_for_ever() {
        assert!(parse_period("0").is_err() && parse_period("9999999999999999999").is_err());
        assert_eq!(parse_period("1h").unwrap(), Duration::from_secs(3600));
    }

    #[test]
    fn seconds_are_the_default_and_suffixes_scale() {
        let ms = |text| parse(text).unwrap().as_millis();
        assert_eq!(
            [ms("2"), ms("0.5"), ms("500ms"), ms("10s"), ms("2m"), ms("1h"), ms("0")],
            [2000, 500, 500, 10_000, 120_000, 3_600_000, 0]
        );
        for bad in ["", "s", "-1", "1d", "1 s", "nan", "inf", "1e999", "ms5", "٣"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        assert!(parse_period("0").is_err());
        assert!(parse_period("0.0001ms").is_ok());
    }

    #[test]
    fn the_unit_fits_the_length() {
        let shown = |us| show(Duration::from_micros(us));
        assert_eq!([shown(0), shown(850), shown(999)], ["0 µs", "850 µs", "999 µs"]);
        assert_eq!([shown(1000), shown(9_100), shown(131_400)], ["1.0 ms", "9.1 ms", "131 ms"]);
        assert_eq!([shown(9_960), shown(999_600), shown(1_250_000)], ["10 ms", "1.00 s", "1.25 s"]);
    }
}
