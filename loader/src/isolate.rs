//! Attaches to as many functions as the kernel takes, where it refuses them as a whole and does not say which one it
//! stumbled over.
//!
//! A refused set is halved until one function is left, the first that is refused: all before it are taken. Without it
//! the whole set is tried again, since one link is what everything should end in, and if that is refused too, the
//! search goes on behind. So `k` bad functions among `n` cost at most `k · (log₂ n + 2) + 1` attempts. Those of a
//! module that has gone lie side by side, and cost one attempt each once that shows.

use std::io;

/// What came of it.
#[derive(Debug)]
pub struct Isolated<L> {
    /// One link wherever one was enough; none where all functions were refused.
    pub links: Vec<L>,
    /// The functions that were refused, by their places, ascending, with the kernel's reason.
    pub refused: Vec<(usize, io::Error)>,
    /// How often the kernel was asked.
    pub attempts: usize,
}

/// Attaches to `sites` with `attach`, leaving out those that the kernel refuses.
///
/// # Errors
///
/// What the kernel says where that is not about any function: see [`is_about_functions`].
pub fn attach_to_all_but_refused<L>(
    sites: &[u64],
    attach: impl FnMut(&[u64]) -> io::Result<L>,
) -> io::Result<Isolated<L>> {
    let mut search = Search { sites, attach, attempts: 0, links: Vec::new(), refused: Vec::new() };
    search.attach_rest((0..sites.len()).collect())?;
    search.refused.sort_by_key(|(place, _)| *place);
    Ok(Isolated { links: search.links, refused: search.refused, attempts: search.attempts })
}

struct Search<'s, L, F> {
    sites: &'s [u64],
    attach: F,
    attempts: usize,
    links: Vec<L>,
    refused: Vec<(usize, io::Error)>,
}

/// Whether an errno says that one of the functions is at fault, at least.
pub fn is_about_functions(error: &io::Error) -> bool {
    matches!(remedy(error), Remedy::LeaveOut | Remedy::Split)
}

/// What an errno of a set of functions calls for.
enum Remedy {
    /// One of them at least is at fault.
    LeaveOut,
    /// They are too many for one link, or for the memory that there is.
    Split,
    /// It has nothing to do with them.
    GiveUp,
}

/// See `attach/multi.rs` for what each errno means.
fn remedy(error: &io::Error) -> Remedy {
    match error.raw_os_error() {
        Some(
            libc::EINVAL | libc::ENOENT | libc::ESRCH | libc::EADDRNOTAVAIL | libc::EBUSY | libc::EEXIST,
        ) => Remedy::LeaveOut,
        Some(libc::E2BIG | libc::ENOMEM) => Remedy::Split,
        _ => Remedy::GiveUp,
    }
}

impl<L, F: FnMut(&[u64]) -> io::Result<L>> Search<'_, L, F> {
    /// Attaches to all of `places`, in order, but those that are refused.
    fn attach_rest(&mut self, mut places: Vec<usize>) -> io::Result<()> {
        // So many of the first ones are known to be taken.
        let mut taken = 0;
        while !places.is_empty() {
            let error = match self.attempt(&places) {
                Ok(link) => {
                    self.links.push(link);
                    return Ok(());
                }
                Err(error) => error,
            };
            match remedy(&error) {
                Remedy::GiveUp => return Err(error),
                Remedy::Split if places.len() == 1 => return Err(error),
                Remedy::Split => {
                    let rest = places.split_off(places.len().div_ceil(2));
                    self.attach_rest(places)?;
                    (places, taken) = (rest, 0);
                }
                Remedy::LeaveOut => {
                    let bad = self.find_refused(&places[taken..], error)?;
                    taken += bad;
                    self.leave_out_neighbours(&mut places, taken)?;
                }
            }
        }
        Ok(())
    }

    /// Finds the first that is refused among `places`, which have one, as `error` tells.
    fn find_refused(&mut self, places: &[usize], mut error: io::Error) -> io::Result<usize> {
        let (mut start, mut end) = (0, places.len());
        while end - start > 1 {
            let middle = start.midpoint(end);
            match self.refusal(&places[start..middle])? {
                None => start = middle,
                Some(of_half) => (end, error) = (middle, of_half),
            }
        }
        self.refused.push((places[start], error));
        Ok(start)
    }

    /// Takes the refused function at `at` out of `places`, and where it has the one before it for a neighbour, those
    /// behind it that are refused too.
    fn leave_out_neighbours(&mut self, places: &mut Vec<usize>, at: usize) -> io::Result<()> {
        let place = places.remove(at);
        if !self.refused.iter().any(|(refused, _)| refused + 1 == place) {
            return Ok(());
        }
        while let Some(&next) = places.get(at) {
            let Some(error) = self.refusal(&[next])? else { break };
            self.refused.push((next, error));
            places.remove(at);
        }
        Ok(())
    }

    /// Why `places` are refused; nothing where they are taken. That link is not what it should end in.
    fn refusal(&mut self, places: &[usize]) -> io::Result<Option<io::Error>> {
        match self.attempt(places) {
            Ok(link) => {
                drop(link);
                Ok(None)
            }
            Err(error) => match remedy(&error) {
                Remedy::LeaveOut => Ok(Some(error)),
                Remedy::Split | Remedy::GiveUp => Err(error),
            },
        }
    }

    fn attempt(&mut self, places: &[usize]) -> io::Result<L> {
        self.attempts += 1;
        let sites: Vec<u64> = places.iter().map(|&place| self.sites[place]).collect();
        (self.attach)(&sites)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// A kernel that refuses these sites, and more than `most` at once. A link is the sites that it has.
    fn isolate(count: usize, bad: &BTreeSet<u64>, most: usize) -> io::Result<Isolated<Vec<u64>>> {
        let sites: Vec<u64> = (0..count as u64).collect();
        attach_to_all_but_refused(&sites, |sites| {
            if sites.len() > most {
                return Err(io::Error::from_raw_os_error(libc::ENOMEM));
            }
            match sites.iter().find(|site| bad.contains(site)) {
                Some(site) => {
                    Err(io::Error::from_raw_os_error([libc::EINVAL, libc::ENOENT][*site as usize % 2]))
                }
                None => Ok(sites.to_vec()),
            }
        })
    }

    fn attempts_at_most(count: usize, bad: usize) -> usize {
        let log = count.next_power_of_two().trailing_zeros() as usize;
        bad * (log + 2) + 1
    }

    #[test]
    fn without_a_bad_one_it_is_one_attempt() {
        let all = isolate(5000, &BTreeSet::new(), usize::MAX).unwrap();
        assert_eq!((all.links.len(), all.refused.len(), all.attempts), (1, 0, 1));
    }

    #[test]
    fn first_last_neighbours_and_all_are_found() {
        for (count, bad) in [
            (1, vec![0]),
            (2, vec![0]),
            (2, vec![1]),
            (1000, vec![0]),
            (1000, vec![999]),
            (1000, vec![0, 499, 500, 999]),
            (64, (0..64).collect()),
        ] {
            let bad: BTreeSet<u64> = bad.into_iter().collect();
            let all = isolate(count, &bad, usize::MAX).unwrap();
            let refused: BTreeSet<u64> = all.refused.iter().map(|(place, _)| *place as u64).collect();
            assert_eq!(refused, bad);
            assert_eq!(all.links.len(), usize::from(bad.len() < count));
            println!("{} bad of {count}: {} attempts", bad.len(), all.attempts);
            assert!(all.attempts <= attempts_at_most(count, bad.len()), "{}", all.attempts);
            if bad.len() == count {
                assert!(all.attempts <= count + 2 * attempts_at_most(count, 1));
            }
            for (place, error) in &all.refused {
                assert_eq!(error.raw_os_error(), Some([libc::EINVAL, libc::ENOENT][place % 2]));
            }
        }
    }

    #[test]
    fn what_is_not_about_functions_ends_it() {
        for errno in [libc::EPERM, libc::ENODEV, libc::EOPNOTSUPP, libc::EIO] {
            let mut asked = 0;
            let error = attach_to_all_but_refused(&[1, 2, 3], |_| -> io::Result<()> {
                asked += 1;
                Err(io::Error::from_raw_os_error(errno))
            })
            .unwrap_err();
            assert_eq!((error.raw_os_error(), asked), (Some(errno), 1));
        }
        let out_of_memory = attach_to_all_but_refused(&[1, 2, 3], |_| -> io::Result<()> {
            Err(io::Error::from_raw_os_error(libc::ENOMEM))
        });
        assert_eq!(out_of_memory.unwrap_err().raw_os_error(), Some(libc::ENOMEM));
    }

    proptest! {
        #[test]
        fn exactly_the_good_ones_end_attached(
            count in 1_usize..400,
            bad in prop::collection::btree_set(0_u64..400, 0..20),
            most in prop::option::of(20_usize..400),
        ) {
            let most = most.unwrap_or(usize::MAX);
            let bad: BTreeSet<u64> = bad.into_iter().filter(|&site| site < count as u64).collect();
            let all = isolate(count, &bad, most).unwrap();
            let mut attached = all.links.concat();
            attached.sort_unstable();
            let good: Vec<u64> = (0..count as u64).filter(|site| !bad.contains(site)).collect();
            prop_assert_eq!(attached, good);
            let parts = count.div_ceil(most).next_power_of_two();
            prop_assert!(all.links.len() <= parts);
            prop_assert!(all.attempts <= attempts_at_most(count, bad.len()) + 2 * parts);
        }
    }
}
