"""The summary counts failures of both kinds of runner and never calls an empty run a success."""
import summarise_results

CTEST = """<testsuite tests="4" failures="1"><testcase name="A.One" status="run"/>
<testcase name="A.Two" status="fail"><failure message=""/></testcase>
<testcase name="A.Three" status="notrun"><skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/></testcase>
<testcase name="A.Four" status="run"/></testsuite>"""
PYTEST = """<testsuites><testsuite><testcase classname="m" name="t1"/>
<testcase classname="m" name="t2"><error message="boom"/></testcase></testsuite></testsuites>"""


def summary(capsys, *paths):
    status = summarise_results.main([str(path) for path in paths])
    return status, capsys.readouterr().out.splitlines()


def results(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_adds_ctest_and_pytest_and_names_what_did_not_pass(tmp_path, capsys):
    status, lines = summary(capsys, results(tmp_path, "c.xml", CTEST), results(tmp_path, "p.xml", PYTEST))
    assert status == 1 and lines[-1] == "3 passed, 2 failed"
    assert any(line.startswith("failed: A.Two") for line in lines)
    assert any(line.startswith("skipped: A.Three") for line in lines)
    assert any(line.startswith("failed: m::t2 boom") for line in lines)


def test_all_passed_is_a_success(tmp_path, capsys):
    good = '<testsuite><testcase name="A.One" status="run"/></testsuite>'
    status, lines = summary(capsys, results(tmp_path, "c.xml", good))
    assert (status, lines) == (0, ["1 passed, 0 failed"])


def test_nothing_run_or_a_missing_file_is_a_failure(tmp_path, capsys):
    assert summary(capsys, results(tmp_path, "c.xml", "<testsuite/>"))[0] == 1
    status, lines = summary(capsys, tmp_path / "gone.xml")
    assert status == 1 and lines[-1] == "0 passed, 1 failed"
