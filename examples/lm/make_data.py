"""Write a synthetic corpus: one document a line, lengths far apart, and grammar enough to be learned."""

from __future__ import annotations

import argparse
import os
import random
from pathlib import Path

SYLLABLES = ["ba", "ce", "di", "fo", "gu", "ha", "ki", "lo", "me", "nu", "pa", "ri", "so", "ta", "ve", "zo"]
VOCABULARY = 400
FOLLOWERS = 6


def make_words(rng: random.Random) -> list[str]:
    """Draw distinct words of one to four syllables."""
    words: dict[str, None] = {}
    while len(words) < VOCABULARY:
        words["".join(rng.choices(SYLLABLES, k=rng.randint(1, 4)))] = None
    return list(words)


def write_file(path: Path, documents: int, seed: int) -> int:
    """Write so many documents to `path` and return the number of bytes. Same seed, same file.

    Each word has a few words that may follow it; a document is a walk from word to word. Most are short, some are long.
    """
    rng = random.Random(seed)
    words = make_words(rng)
    followers = {word: rng.choices(words, k=FOLLOWERS) for word in words}
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("w", encoding="ascii") as file:
        for _ in range(documents):
            text = [rng.choice(words)]
            for _ in range(int(2 + rng.expovariate(1 / 10))):
                text.append(rng.choice(followers[text[-1]]))
            file.write(" ".join(text) + ".\n")
    os.replace(temporary, path)
    return path.stat().st_size


def main() -> None:
    """Read the command line and write the file."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("corpus.txt"), help="file to write")
    parser.add_argument("--documents", type=int, default=20_000, help="lines, at least 1")
    parser.add_argument("--seed", type=int, default=0, help="same seed and number, same file")
    args = parser.parse_args()
    size = write_file(args.out, args.documents, args.seed)
    print(f"{args.out}: {args.documents} documents, {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
