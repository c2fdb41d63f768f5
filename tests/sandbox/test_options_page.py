"""The example in docs/sandbox.md does what the page says."""

import re
import shutil

import pytest
from checkout import ROOT

PAGE = ROOT / "docs" / "sandbox.md"


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
def test_the_example_prints_what_the_page_shows(capsys: pytest.CaptureFixture[str]):
    trying = PAGE.read_text(encoding="utf-8").partition("## Try it")[2]
    example, shown = re.findall(r"```\w*\n(.*?)```", trying, re.DOTALL)[:2]
    exec(compile(example, str(PAGE), "exec"), {"__name__": "example"})
    assert capsys.readouterr().out == shown
