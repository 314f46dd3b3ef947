//! Every way to make a sequence of choices, one after the other.
//!
//! The body asks for choices as it would ask a random generator, and is run again until it has made all of them. The
//! idea is that of `exhaustigen` (Matklad, *Generate All the Things*, 2021): a run is a number whose digits are the
//! choices, each with its own base, and the next run is that number plus one.

/// The choices of one run, and the count of choices there were at each place.
#[derive(Debug, Default)]
pub(crate) struct Choices {
    digits: Vec<(u64, u64)>,
    place: usize,
}

impl Choices {
    /// Runs `body` once for each sequence of choices it can make; says how often that was.
    pub(crate) fn all(mut body: impl FnMut(&mut Self)) -> u64 {
        let (mut choices, mut runs) = (Self::default(), 0);
        loop {
            choices.place = 0;
            body(&mut choices);
            runs += 1;
            while choices.digits.last().is_some_and(|(digit, most)| digit == most) {
                choices.digits.pop();
            }
            match choices.digits.last_mut() {
                Some((digit, _)) => *digit += 1,
                None => return runs,
            }
        }
    }

    /// Each number from `least` to `most`.
    pub(crate) fn between(&mut self, least: u64, most: u64) -> u64 {
        if self.place == self.digits.len() {
            self.digits.push((0, most - least));
        }
        let (digit, _) = self.digits[self.place];
        self.place += 1;
        least + digit
    }
}

#[test]
fn every_choice_is_made_once() {
    let mut seen = Vec::new();
    let runs = Choices::all(|choices| {
        let first = choices.between(1, 2);
        seen.push((first, choices.between(0, first)));
    });
    assert_eq!(seen, [(1, 0), (1, 1), (2, 0), (2, 1), (2, 2)]);
    assert_eq!(runs, 5);
}
