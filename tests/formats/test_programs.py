from genie.formats import programs
from genie.formats.programs import programs_below


def program(path, mode=0o755):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode)
    return path


def test_programs_come_in_the_order_of_their_names(tmp_path):
    second, first = program(tmp_path / "a" / "two"), program(tmp_path / "z" / "deep" / "one")
    program(tmp_path / ".git" / "one")
    program(tmp_path / "b" / "one", 0o644)
    (tmp_path / "c" / "one").mkdir(parents=True)
    assert programs_below(tmp_path, ["one", "two", "three"]) == [first, second]


def test_the_search_is_bounded(tmp_path, monkeypatch):
    for number in range(20):
        program(tmp_path / f"{number:02}" / "one")
    monkeypatch.setattr(programs, "MOST_FOLDERS", 5)
    assert len(programs_below(tmp_path, ["one"])) == 4
