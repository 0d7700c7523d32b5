"""Decision files: what is undecided stops before anything is written; what is decided is done."""

import json
import os
import re
import shutil
from contextlib import nullcontext

import numpy as np
import pytest

import virtualzarr as vz
from tests.archive.archives import make_old, months, write, write_archive
from tests.archive.test_kinds import change, interleave
from virtualzarr.archive.anomalies import Anomaly, Kind
from virtualzarr.cli import main
from virtualzarr.curate.decisions import (
    Decisions,
    check_decisions,
    draft_decisions,
    list_actions,
    name_anomaly,
)
from virtualzarr.curate.verdict import judge, sum_costs
from virtualzarr.errors import DecisionError, PublishError


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """Twelve files: one is cut off, one is twice there, and the last four have another factor."""
    folder = tmp_path_factory.mktemp("archive")
    special = {f"_{k}": {"scale": 0.25, "only": ["air"]} for k in range(8, 12)}
    files = write_archive(folder, 12, **special)
    with open(files[3], "r+b") as file:
        file.truncate(2000)
    files.append(str(shutil.copy2(files[5], folder / "day005-copy.nc")))
    make_old(files)
    return files


def draft(folder, archive, form="native", to="air.zarr", **decided):
    """Write a decision file in which some lines are decided, and the others accepted."""
    report = vz.survey(archive)
    text = draft_decisions(report, archive, form=form, to=str(folder / to))
    lines = []
    for line in text.splitlines():
        for key, do in decided.items():
            if f'"{key}' in line:
                line = line.replace("do: null", f"do: {do}")
        lines.append(line)
    path = folder / "air.yaml"
    path.write_text("\n".join(lines))
    return path


DECIDED = {"truncated": "skip", "same content twice": "keep-first", "scale/offset": "convert",
           "step missing": "accept"}  # fmt: skip


def test_what_is_undecided_stops(tmp_path, archive):
    for missing in DECIDED:
        some = {key: do for key, do in DECIDED.items() if key != missing}
        path = draft(tmp_path, archive, **some)
        with pytest.raises(DecisionError, match=rf"nothing was written: {missing}.*: undecided"):
            vz.run_decisions(path)
    assert os.listdir(tmp_path) == ["air.yaml"]


def test_a_run_does_what_was_decided(tmp_path, archive, capsys):
    path = draft(tmp_path, archive, **DECIDED)
    receipt = vz.run_decisions(path, ledger=tmp_path / "air.ledger")
    chosen = [*archive[:3], *archive[4:5], archive[12], *archive[6:12]]
    expected = vz.virtualize(chosen, "time", harmonize=True)
    opened = vz.open(tmp_path / "air.zarr")
    np.testing.assert_array_equal(opened["air"][...], expected["air"][...])
    written = json.loads((tmp_path / "air.zarr.receipt.json").read_text())
    assert written == json.loads(json.dumps(receipt.to_json()))
    assert written["to"][""]["files"] == 11
    assert {os.path.basename(name): why for name, why in written["left_out"].items()} == {
        "day003.nc": "truncated", "day005.nc": "same content twice",
    }  # fmt: skip
    assert written["decisions"] == Decisions.read(path).digest
    assert written["listing"] == vz.survey(archive).listing
    assert written["counts"]["scale/offset/air/era 2"] == 4
    # A dry run says what the run would.
    assert main(["run", str(path), "--dry-run"]) == 1
    assert "--overwrite replaces it" in capsys.readouterr().err
    assert main(["run", str(path), "--dry-run", "--overwrite"]) == 0
    assert "11 files" in capsys.readouterr().out


@pytest.mark.parametrize("do", ["keep-first", "skip", "keep-last"])
@pytest.mark.parametrize("whole_era", [False, True])
def test_one_of_several_copies_is_kept(tmp_path, archive, do, whole_era):
    # Whatever is decided about a file is decided about its copy.
    files = list(archive)
    if whole_era:
        files = [*archive[:3], *archive[4:12]]
        files.append(str(shutil.copy2(archive[9], tmp_path / "day009-copy.nc")))
    decided = {**DECIDED, "same content twice": do, "scale/offset": "skip"}
    receipt = vz.run_decisions(draft(tmp_path, files, **decided))
    left_out = {os.path.basename(name): why.split("/air")[0]
                for name, why in receipt.left_out.items()}  # fmt: skip
    expected = dict.fromkeys((f"day{k:03}.nc" for k in range(8, 12)), "scale/offset")
    if whole_era:
        expected["day009-copy.nc"] = "scale/offset"
    else:
        expected["day003.nc"] = "truncated"
        # The name of the copy comes first.
        copy = "day005-copy.nc" if do == "keep-last" else "day005.nc"
        expected[copy] = "same content twice"
    assert left_out == expected
    chosen = [name for name in files if name not in receipt.left_out]
    assert receipt.to[""]["files"] == len(chosen) == 7
    joined = vz.virtualize(chosen, "time", combine="by_coords")
    written = vz.open(tmp_path / "air.zarr")
    for name in ("time", "air"):
        np.testing.assert_array_equal(written[name][...], joined[name][...])


def test_units_that_no_join_converts(tmp_path):
    changed = {"variable_units": "degC", "only": ["air"]}
    files = write_archive(tmp_path, 12, **{f"_{k}": changed for k in range(6, 12)})
    path = draft(tmp_path, files, units="convert")
    line = next(line for line in path.read_text().splitlines() if "units/air/era 2" in line)
    assert line.startswith('  - {at: "units/air/era 2", do: convert, files: 6, what: "units ')
    assert line.endswith('degC\'", from: "2000-01-07T00:00:00"}  # skip, stop')
    with pytest.raises(DecisionError, match=r"written: units/air/era 2: no join .*degC"):
        vz.run_decisions(path)
    path = draft(tmp_path, files, units="skip")
    assert len(vz.run_decisions(path).left_out) == 6


def test_more_files_than_were_decided_on_stop(tmp_path, archive):
    path = draft(tmp_path, archive, **DECIDED)
    more = shutil.copytree(os.path.dirname(archive[0]), tmp_path / "more")
    names = [str(more / os.path.basename(name)) for name in archive]
    with open(names[6], "r+b") as file:
        file.truncate(2000)
    text = path.read_text().replace(os.path.dirname(archive[0]), str(more))
    path.write_text(text)
    with pytest.raises(DecisionError, match="truncated: 2 files, and decided of 1"):
        vz.run_decisions(path)
    os.unlink(names[6])
    write(names[6], 144.0, 4, variable_units="degC", only=["air"])
    with pytest.raises(DecisionError, match="units/air: 1 files, and no line that decides"):
        vz.run_decisions(path)
    path.write_text(text.replace('{at: "new", do: stop}', '{at: "new", do: skip}'))
    assert vz.run_decisions(path, dry_run=True).left_out[names[6]] == "units/air"


def write_units(folder, days, first_kelvin, last_kelvin):
    """Write a file for each day, those of some days in K, and all others in degC."""
    folder.mkdir()
    files = []
    for day in days:
        unit = "K" if first_kelvin <= day < last_kelvin else "degC"
        options = {"variable_units": unit, "names": ["air"]}
        files.append(write(str(folder / f"day{day:03}.nc"), 24.0 * day, 4, **options))
    make_old(files)
    return files


@pytest.mark.parametrize("new", ["stop", "skip", "accept"])
def test_a_line_is_of_one_era_and_not_of_a_number(tmp_path, new):
    folder = tmp_path / "days"
    write_units(folder, range(20, 32), 20, 26)
    path = draft(tmp_path, [str(folder / "*.nc")], units="skip")
    path.write_text(path.read_text().replace("do: stop", f"do: {new}"))
    assert len(vz.run_decisions(path, dry_run=True).left_out) == 6
    shutil.rmtree(folder)
    # What was the first era is the second one after a back-fill.
    write_units(folder, range(14, 32), 20, 26)
    now = r"\(units 'degC' becomes 'K' from 2000-01-21T00:00:00\)"
    decided = r"\(units 'K' becomes 'degC' from 2000-01-27T00:00:00\)"
    with pytest.raises(DecisionError, match=f"another era {decided} than is there now {now}"):
        vz.run_decisions(path)
    assert not (tmp_path / "air.zarr").exists()
    # An archive that only grows has the same eras.
    shutil.rmtree(folder)
    write_units(folder, range(20, 32), 20, 26)
    path.write_text(path.read_text().replace("files: 6, ", ""))
    write(str(folder / "day032.nc"), 24.0 * 32, 4, variable_units="degC", names=["air"])
    assert len(vz.run_decisions(path).left_out) == 7


def test_lines_of_eras_say_which(tmp_path):
    files = write_units(tmp_path / "days", range(12), 0, 6)
    path = draft(tmp_path, files, units="skip")
    text = path.read_text()
    for key in ("what", "from"):
        line = json.loads(text[text.index(f"{key}: ") + len(key) + 2 :].split(", from")[0]
                          .split("}")[0])  # fmt: skip
        path.write_text(text.replace(f", {key}: {json.dumps(line)}", ""))
        with pytest.raises(DecisionError, match="decided of another era"):
            vz.run_decisions(path)
        path.write_text(text.replace(json.dumps(line), "5"))
        with pytest.raises(DecisionError, match=r"what, from and strand of the line .* are texts"):
            vz.run_decisions(path)


def test_new_files_that_cannot_be_scanned_are_said_to_be_left_out(tmp_path):
    files = write_archive(tmp_path, 12, names=("air",))
    path = draft(tmp_path, files)
    path.write_text(path.read_text().replace("do: stop", "do: accept"))
    with open(files[11], "r+b") as file:
        file.truncate(2000)
    receipt = vz.run_decisions(path)
    assert receipt.left_out == {files[11]: "truncated"}
    assert receipt.to[""]["files"] == 11
    assert json.loads((tmp_path / "air.zarr.receipt.json").read_text())["left_out"] == {
        files[11]: "truncated"
    }


def test_strands_are_published_each_for_itself(tmp_path):
    files = interleave(tmp_path, 6)
    path = draft(tmp_path, files, to="air.zarr")
    with pytest.raises(DecisionError, match=r"2 strands \(16, 17\)"):
        vz.run_decisions(path)
    path = draft(tmp_path, files, to="air-{strand}.zarr")
    receipt = vz.run_decisions(path)
    assert {strand: each["files"] for strand, each in receipt.to.items()} == {"16": 6, "17": 6}
    for strand, first in (("16", 1), ("17", 11)):
        assert vz.open(tmp_path / f"air-{strand}.zarr")["x"][0] == first
        assert (tmp_path / f"air-{strand}.zarr.receipt.json").exists()


@pytest.mark.parametrize("new", ["stop", "skip", "accept"])
def test_strands_that_nobody_decided_on(tmp_path, new):
    files = interleave(tmp_path, 6)
    path = draft(tmp_path, files, to="air-{strand}.zarr")
    text = path.read_text().replace('"new", do: stop', f'"new", do: {new}')
    assert '  strands: ["16", "17"]\n' in text
    # Of those that are not in the list, `new` says what becomes.
    path.write_text(text.replace(', "17"', ""))
    problem = r"nobody has decided on 17"
    with pytest.raises(DecisionError, match=problem) if new == "stop" else nullcontext():
        receipt = vz.run_decisions(path)
        assert [*receipt.to] == (["16"] if new == "skip" else ["16", "17"])
        assert len(receipt.left_out) == receipt.counts.get("new", 0) == (6 if new == "skip" else 0)
    # Another name splits all names otherwise.
    path.write_text(text)
    for k in range(6):
        os.rename(files[2 * k], re.sub("G16", "metop", files[2 * k]))
    report = vz.survey(str(tmp_path / "*.nc"))
    assert [*report.strands] == ["G17", "metop"]
    decisions = Decisions.read(path)
    problems = [*check_decisions(decisions, report)]
    assert problems == ["publish.strands: there is G17, metop now, and decided was 16, 17: draft "
                        "the file again"]  # fmt: skip


def test_strands_are_a_list(tmp_path):
    path = draft(tmp_path, interleave(tmp_path, 6), to="air-{strand}.zarr")
    text = path.read_text()
    path.write_text(text.replace('["16", "17"]', "16"))
    with pytest.raises(DecisionError, match=r"publish.strands is a list of texts"):
        Decisions.read(path)
    # Without a list there is one strand.
    path.write_text(text.replace('  strands: ["16", "17"]\n', ""))
    with pytest.raises(DecisionError, match=r"there is 16, 17 now, and decided was one without"):
        vz.run_decisions(path)


@pytest.mark.parametrize("time_type", ["i4", "f8"])
def test_gaps_are_filled(tmp_path, time_type):
    files = write_archive(tmp_path, 10, names=("air",), time_type=time_type)
    os.unlink(files.pop(5))
    path = draft(tmp_path, files, to="a.zarr", **{"step missing": "fill"})
    vz.run_decisions(path)
    times = vz.open(tmp_path / "a.zarr")["time"][...]
    np.testing.assert_array_equal(times, np.arange(40) * 6.0)


def test_a_gap_that_is_accepted_is_not_filled(tmp_path):
    files = write_archive(tmp_path, 40, names=("air",))
    for name in [*files[10:22], files[30]]:
        os.unlink(name)
    names = [name for name in files if os.path.exists(name)]
    both = {"step missing": "fill", "span missing": "accept"}
    with pytest.raises(DecisionError, match=r"time: fill was decided, and accept of span missing"):
        vz.run_decisions(draft(tmp_path, names, **both))
    path = draft(tmp_path, names, **both)
    text = path.read_text().replace('"new", do: stop', '"new", do: accept')
    path.write_text(re.sub(r'  - {at: "span.*', "", text))
    with pytest.raises(DecisionError, match=r"time: fill was decided, and accept of span missing"):
        vz.run_decisions(path)
    assert not (tmp_path / "air.zarr").exists()
    path = draft(tmp_path, names, **dict.fromkeys(both, "fill"))
    vz.run_decisions(path)
    assert vz.open(tmp_path / "air.zarr")["time"].shape == (160,)


def test_places_of_files_that_are_left_out_are_not_filled(tmp_path):
    cold = {"variable_units": "degC", "only": ["air"]}
    files = write_archive(tmp_path, 24, names=("air",), _9=cold, _23=cold)
    os.unlink(files.pop(15))
    path = draft(tmp_path, files, **{"step missing": "fill", "units": "skip"})
    with pytest.raises(DecisionError, match="units/air leaves out 1 files between others"):
        vz.run_decisions(path)
    # Nothing is filled at the end.
    del files[9]
    path = draft(tmp_path, files, **{"step missing": "fill", "units": "skip"})
    receipt = vz.run_decisions(path)
    assert list(receipt.left_out) == [files[-1]]
    assert vz.open(tmp_path / "air.zarr")["time"].shape == (23 * 4,)


def test_a_variable_that_nobody_decided_of_is_not_filled(tmp_path):
    files = write_archive(tmp_path, 12, names=("air", "rain", "snow"))
    write(files[5], 24.0 * 5, 4, names=("air", "rain"))
    make_old(files)
    path = draft(tmp_path, files, variable="fill")
    path.write_text(path.read_text().replace('"new", do: stop', '"new", do: accept'))
    assert vz.run_decisions(path).counts == {"variable gone/snow": 1}
    write(files[9], 24.0 * 9, 4, names=("air", "snow"))
    with pytest.raises(
        DecisionError, match=r"gone/snow: fill was .* nothing of variable gone/rain"
    ):
        vz.run_decisions(path, overwrite=True)
    # Files that are left out lack nothing.
    path.write_text(path.read_text().replace('"new", do: accept', '"new", do: skip'))
    assert vz.run_decisions(path, overwrite=True).left_out == {files[9]: "variable gone/rain"}
    written = vz.open(tmp_path / "air.zarr")
    assert (written["snow"][20:24] == -9).all()
    assert (written["rain"][...] != -9).all()


def test_gaps_within_files_are_not_filled(tmp_path):
    files = write_archive(tmp_path, 12, names=("air",))
    write(files[5], 120.0, times=[120.0, 126.0, 138.0], names=["air"])
    make_old(files)
    key = "step missing/time/within files"
    path = draft(tmp_path, files, **{key: "accept"})
    assert f'"{key}", do: accept, files: 1}}  # accept, skip, stop' in path.read_text()
    vz.run_decisions(path)
    times = vz.open(tmp_path / "air.zarr")["time"][...]
    np.testing.assert_array_equal(times, np.delete(np.arange(48) * 6.0, 22))
    path = draft(tmp_path, files, **{"step missing": "fill"})
    with pytest.raises(
        DecisionError, match=rf"{key}' cannot be 'fill' in the form native, but accept, skip, stop"
    ):
        vz.run_decisions(path)


def write_codecs(folder, names=("p", "q")):
    """Write twelve files, the last six of which have some variables shuffled."""
    special = {f"_{k}": {"shuffle": True, "only": names} for k in range(6, 12)}
    return write_archive(folder, 12, names=("p", "q"), **special)


def test_only_variables_that_were_decided_are_copied(tmp_path):
    files = write_codecs(tmp_path)
    report = vz.survey(files)
    assert [name_anomaly(odd) for odd in report.anomalies] == ["filters/p/era 2", "filters/q/era 2"]
    some = {"form": "json", "to": "a.json", "filters/p": "copy", "filters/q": "virtual-for-us"}
    path = draft(tmp_path, files, **some)
    with pytest.raises(DecisionError, match=r"written: q: \d+ chunks would be copied \(.*copy:"):
        vz.run_decisions(path)
    assert not [name for name in os.listdir(tmp_path) if name.startswith("a.json")]
    path = draft(tmp_path, files, form="json", to="a.json", filters="copy")
    vz.run_decisions(path)
    joined = vz.virtualize(files, "time")
    written = vz.open(tmp_path / "a.json")
    for name in ("p", "q"):
        np.testing.assert_array_equal(written[name][...], joined[name][...])


def test_forms_that_copy_nothing_offer_no_copy(tmp_path):
    files = write_codecs(tmp_path, ("p",))
    for form in ("native", "dataset"):
        path = draft(tmp_path, files, form=form, to="a", filters="copy")
        assert "# virtual-for-us, skip, stop" in path.read_text()
        with pytest.raises(
            DecisionError, match=f"cannot be 'copy' in the form {form}, but virtual"
        ):
            vz.run_decisions(path)
    assert "virtual-for-us, copy, skip" in draft(tmp_path, files, form="json").read_text()


@pytest.mark.parametrize(("old", "new", "problem"), [
    ("publish:", "publich:", "unknown key 'publich'.*publish"),
    ("  form: native", "  form: nativ", "nativ"),
    ('{at: "new", do: stop}', '{at: "new", do: stop, why: x}', "unknown key 'why'"),
    ('{at: "new", do: stop}', '{at: "truncatd", do: stop}', "no kind.*truncated"),
    ('{at: "new", do: stop}', '{at: "new", do: convert}', "cannot be 'convert'"),
    ("do: stop", "do: stop, do: skip", "there twice"),
    ("virtualzarr-decisions: 1", "virtualzarr-decisions: 2", "version 2"),
    ("  files: 13", "  files: many", "a number of files"),
    ("virtualzarr-decisions: 1", "virtualzarr-decisions: true", "version True"),
    ("  files: 13", "  files: 13\n  format: [hdf5]", r"archive.format is a text, not \['hdf5'\]"),
    ("  files: 13", "  files: 13\n  inventory: 5", "archive.inventory is a text, not 5"),
    ("  dim: \"time\"", "  dim: \"\"", "nobody has decided"),
    ("publish:", "publish: &a [*a, *a]\nx:", "alias"),
    ("publish:", "publish: !!python/object/apply:os.system [x]\nx:", "cannot be read"),
    ("decide:", "decide: 3\nx:", "is no|list|unknown|cannot"),
])  # fmt: skip
def test_files_that_say_nothing_sensible_are_refused(tmp_path, archive, old, new, problem):
    path = draft(tmp_path, archive, **DECIDED)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(DecisionError, match=problem):
        Decisions.read(path)


def test_what_is_no_file_is_refused(tmp_path):
    for path, why in (("none.yaml", "No such file"), ("", "Is a directory")):
        with pytest.raises(DecisionError, match=f"cannot be read: {why}"):
            vz.run_decisions(tmp_path / path)


@pytest.mark.parametrize("half", ["\\ud800", "\\udbff", "\\udc00"])
@pytest.mark.parametrize("suffix", ["yaml", "json"])
def test_halves_of_characters_name_no_file(tmp_path, archive, half, suffix):
    import yaml

    path = draft(tmp_path, archive, **DECIDED)
    if suffix == "json":
        document = yaml.safe_load(path.read_text())
        path = tmp_path / "air.json"
        path.write_text(json.dumps(document))
    path.write_text(path.read_text().replace("air.zarr", f"air{half}.zarr"))
    with pytest.raises(DecisionError, match="half of a character"):
        vz.run_decisions(path)


def test_characters_beyond_16_bits_are_kept(tmp_path):
    folder = tmp_path / "\U0001f600"
    folder.mkdir()
    files = write_archive(folder, 12, names=("air",), _5={"variable_units": "\U0001f600"})
    path = draft(tmp_path, files, to="\U0001f600.zarr", units="skip")
    assert vz.run_decisions(path).left_out == {files[5]: "units/air"}
    assert (tmp_path / "\U0001f600.zarr" / "zarr.json").exists()


def test_new_is_to_be_decided_of_too(tmp_path):
    files = write_archive(tmp_path, 12, names=("air",))
    path = draft(tmp_path, files)
    path.write_text(path.read_text().replace("do: stop", "do: null"))
    with pytest.raises(DecisionError, match="nothing was written: new: undecided"):
        vz.run_decisions(path)


@pytest.mark.parametrize("form", ["native", "parquet", "dataset", "icechunk"])
def test_a_file_of_json_is_of_no_other_form(tmp_path, archive, form):
    path = draft(tmp_path, archive, form=form, to="a.json", **DECIDED)
    with pytest.raises(
        DecisionError, match=f"a.json', a file of JSON, and publish.form is '{form}"
    ):
        vz.run_decisions(path)


def test_json_says_the_same(tmp_path, archive):
    import yaml

    path = draft(tmp_path, archive, **DECIDED)
    other = tmp_path / "air.json"
    other.write_text(json.dumps(yaml.safe_load(path.read_text())))
    first, second = Decisions.read(path), Decisions.read(other)
    assert first.lines == second.lines
    assert (first.paths, first.to) == (second.paths, second.to)


def test_every_kind_can_be_decided():
    for kind in Kind.__args__:
        actions = list_actions(kind)
        assert {"skip", "stop"} <= set(actions)
        assert name_anomaly(Anomaly(kind, ("a",), "air/x", era=3)) == f"{kind}/air/x/era 3"
    # No join fills what it cannot scan.
    assert "fill" in list_actions("variable gone")
    assert list_actions("variable skipped") == ("skip", "stop")


def test_hostile_names_of_variables_are_texts(tmp_path, archive):
    report = vz.survey(archive)
    name = 'a", do: skip}\n  - {at: "new'
    hostile = Anomaly("units", (archive[0],), name)
    object.__setattr__(report, "anomalies", (hostile,))
    path = tmp_path / "a.yaml"
    path.write_text(draft_decisions(report, archive, to="a.zarr"))
    decisions = Decisions.read(path)
    assert [line.at for line in decisions.lines] == ["new", f"units/{name}"]
    assert list(check_decisions(decisions, report)) == [f"units/{name}: undecided"]


def test_names_of_one_calendar_are_converted(tmp_path):
    files = write_archive(tmp_path, 12, _5={"calendar": "standard"})
    path = draft(tmp_path, files, calendar="convert")
    assert vz.run_decisions(path).to[""]["files"] == 12
    write(files[5], 120.0, 4, calendar="noleap")
    with pytest.raises(DecisionError, match="no join converts this"):
        vz.run_decisions(draft(tmp_path, files, calendar="convert", to="b.zarr"))


def test_verdicts_are_what_publishing_does(tmp_path, archive):
    report = vz.survey([name for name in archive if "003" not in name and "005" not in name])
    verdicts = judge(report)
    by_form = {(each.form, each.era): each for each in verdicts}
    assert by_form["native", 2].result == "decide"
    copied = [each for each in verdicts if each.form == "json" and each.result == "copy"]
    # With two factors, numbers are float64: nobody else reads int16 as these, of either era.
    assert {(each.era, each.variable): (each.chunks, each.nbytes) for each in copied} == {
        (1, "air"): (24, 24 * 4 * 8),
        (2, "air"): (16, 16 * 4 * 8),
    }
    names = report.strands[""]
    joined = vz.virtualize(names, "time", harmonize=True)
    done = joined.publish(tmp_path / "air.json", copy=True)
    assert done.copied == sum(each.chunks for each in copied)
    costs = dict(sum_costs(verdicts))
    assert "copies about 40 chunks, 1,280 bytes" in costs["json"]
    assert "convert" in costs["native"]


@pytest.mark.parametrize("shortened", [None, 7, 11])
def test_verdicts_are_true_of_all_numbers_of_rows(tmp_path, shortened):
    """Not only of the first file, the last one, and one between."""
    if shortened is None:
        files = months(tmp_path, 12, first=0, whole=True)
    else:
        short = {f"_{shortened}": {"times": [24.0 * shortened, 24.0 * shortened + 6]}}
        files = write_archive(tmp_path, 24, names=("air",), chunks=(4, 4), **short)
        for file in files[12:]:
            # An era of its own, which joins and forms do not mind.
            change(file, lambda data: data["air"].setncattr("least_significant_digit", 2))
    report = vz.survey(files)
    assert len(report.eras) == (1 if shortened is None else 2)
    assert "chunk shape" not in {each.kind for each in report.anomalies}
    costs = dict(sum_costs(judge(report)))
    joined = vz.virtualize(files, "time")
    for form, name in (("json", "a.json"), ("parquet", "a.parq")):
        said = costs[form] == "virtual for all"
        with nullcontext() if said else pytest.raises(PublishError):
            joined.publish(tmp_path / name)
    assert costs["parquet"] != "virtual for all"


def test_verdicts_say_what_odd_chunks_make_of_the_others(tmp_path):
    files = write_archive(tmp_path, 24, names=("air",), chunks=(4, 4), _7={"chunks": (2, 4)})
    report = vz.survey(files)
    assert [(each.kind, each.era) for each in report.anomalies] == [("chunk shape", None)]
    verdicts = judge(report)
    joined = vz.virtualize(files, "time")
    for form, name in (("json", "a.json"), ("parquet", "a.parq")):
        copied = sum(each.chunks for each in verdicts if each.form == form)
        assert joined.publish(tmp_path / name, copy=True).copied == copied
    assert dict(sum_costs(verdicts))["parquet"].startswith("copies")


@pytest.mark.parametrize("odd", [0, 7, 20])
def test_verdicts_count_about_what_one_file_of_another_type_makes_of_the_others(tmp_path, odd):
    special = {f"_{odd}": {"dtype": "f8", "only": ["air"]}}
    files = write_archive(tmp_path, 24, names=("air",), **special)
    verdicts = [each for each in judge(vz.survey(files)) if each.form == "json"]
    joined = vz.virtualize(files, "time", harmonize=True)
    seen = vz.preview(joined, tmp_path / "a.json", reference_format="json")
    assert sum(each.chunks for each in verdicts) == pytest.approx(seen.copied, rel=0.1)
    assert dict(sum_costs(verdicts))["json"].startswith("copies about ")


def test_the_command_drafts_and_never_replaces(tmp_path, archive, capsys):
    path = tmp_path / "air.yaml"
    arguments = ["survey", *archive, "--decisions", str(path), "--to", "air.zarr", "--verdict"]
    assert main(arguments) == 0
    assert "as json: copies" in capsys.readouterr().out
    assert len(Decisions.read(path).lines) == 5
    assert main(arguments) != 0


def test_a_listing_is_read_again_by_the_run(tmp_path, archive):
    names = [name for name in archive[:8] if "003" not in name]
    (tmp_path / "files.txt").write_text("\n".join(names) + "\n")
    path, target = tmp_path / "air.yaml", tmp_path / "air.zarr"
    arguments = ["survey", str(tmp_path / "files.txt"), "--listing", "--decisions", str(path)]
    assert main([*arguments, "--to", str(target), "-q"]) == 0
    path.write_text(path.read_text().replace("do: null", "do: accept"))
    assert main(["run", str(path), "-q"]) == 0
    assert vz.open(target)["time"].shape == (28,)
    assert main(["survey", "a.txt", "b.txt", "--listing"]) == 2
