"""``python -m tests.serve hostile``: send heads of requests that attackers would send."""

import argparse
import tempfile
from pathlib import Path

import virtualzarr as vz
from tests.serve.hostile_heads import SECRET, attack
from virtualzarr.serve import create_app, run_in_thread


def make_target(folder: Path) -> Path:
    """Write an array with secrets beside it and below it."""
    (folder / "secret.txt").write_bytes(SECRET)
    group = vz.create_group(folder / "a.zarr")
    group.create_array("x", shape=(4, 4), chunks=(2, 2), dtype="i4")[...] = 7
    (folder / "a.zarr" / "secret.txt").write_bytes(SECRET)
    (folder / "a.zarr" / "x" / "c" / "secret.txt").write_bytes(SECRET)
    (folder / "a.zarr" / "x" / "c" / "9").symlink_to(folder / "secret.txt")
    return folder / "a.zarr"


def main() -> None:
    """Attack a server of this process."""
    parser = argparse.ArgumentParser(prog="python -m tests.serve", description=__doc__)
    parser.add_argument("what", choices=["hostile"])
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        app = create_app(make_target(Path(folder)))
        with run_in_thread(app) as url:
            statuses = attack(int(url.rsplit(":", 1)[1]), options.count, options.seed)
    told = {status.decode() or "none": number for status, number in statuses.most_common()}
    print(f"{options.count} heads from seed {options.seed}: nothing was reached; {told}")


if __name__ == "__main__":
    main()
