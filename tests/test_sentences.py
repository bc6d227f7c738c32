"""What users read is plain English: words and phrases that readers stumbled over are refused everywhere."""

import re

import pytest
from sentences import all_sentences, prose, python_strings, script_strings

REFUSED = {
    r"its only run took": "it took 35.3 ms (limit 20 ms)",
    r"the first last": "what changed before (newest first)",
    r"\bgets? \{\}.* a step\b": "grows by about one Tensor per step",
    r"what is free\b": "free memory (13.9 GiB)",
    r"\blasts for about\b": "will run out in about",
    r"of its own median": "a millionth of its median",
    r"a warning or worse": "had a warning",
    r"cannot keep to": "costs more than its limit",
    r"and that stays\b|as rarely as it gets|Short steps are like that": "this cannot be reduced further",
    r"on a way to the loss": "the bad value came from the loss code",
    r"effects cannot be put back": "which may have side effects that cannot be undone",
    r"for a closer look|the closer look is over": "Recording in more detail for 20 steps",
    r"is left out; it is tried again": "update skipped; retrying (1 of 1)",
    r"olicy broken|in magnitude, above": "Input policy violated: abs(input) reaches 1001 (limit 1000)",
    r"nothing at warning or above": "no warnings",
    r"next to nothing": "almost no gradient; have almost stopped learning",
    r"[Tt]hey part at|no step before it is equal": "They differ from step 0, the first one",
    r"Keep the next step's numbers": "Save the next step's statistics",
    r"can be asked of the training": "so these controls are off",
    r"No growth shows|a line through": "No significant growth: +30.5 KiB per step",
    r"known to feed a leak": "No leak found",
    r"Events that wait|requests that were given up": "0 events waiting, 2 requests abandoned",
    r"account balances": "all records are accounted for",
    r"It is the level off": "same as level `off`",
    r"with something wrong, and say": "with a known fault and show what is found",
    r"stands? behind its name": "everything after the script's name is passed to it",
    r"Says which and how much|that is still written stays": "Lists what would be deleted and asks",
    r"goes before the environment": "Arguments override environment variables",
    r"\b(a|the|no) mend\b|\bmended\b": "fix, fixed, repaired",
    r"\bdearest?\b": "expensive, most expensive",
    r"\b[Aa]mid\b|\b[Ww]hoever\b|\bis begun\b|\bwhose turn\b": "a plain verb or noun",
    r"\bis ill\b": "unhealthy",
    r"\b(is|are) no (port|count|age|address|number|name|file|bundle|feature)\b": "is not a ...",
    r"\{\}( MiB| KiB| ms| bytes| elements)? a step\b": "per step",
}
"""Pattern -> what to write instead. Taken from what people said who read them for the first time."""


@pytest.fixture(scope="module")
def said():
    return list(all_sentences())


def test_all_rooms_are_in_the_dump(said):
    places = {sentence.place.partition("/")[0] for sentence in said}
    assert {"probe", "dashboard", "assets", "docs"} <= places
    assert any(sentence.place.startswith("README.md:") for sentence in said)


@pytest.mark.parametrize("pattern", REFUSED)
def test_no_sentence_has_a_refused_phrase(said, pattern):
    found = [f"{each.place}: {each.text}" for each in said if re.search(pattern, each.text)]
    assert not found, f"write it like this: {REFUSED[pattern]}"


def test_python_strings_are_values_and_neither_docstrings_nor_sql():
    source = '''"""A docstring of a module."""
said = f"Loss is {loss} at step {step}" "; it was not"
query = "SELECT step FROM frames"
"""A string under an attribute."""
'''
    assert list(python_strings(source)) == [(2, "Loss is {} at step {}; it was not")]


def test_script_strings_are_literals_outside_of_comments():
    source = "// a comment of words\nsay(`step ${step} of it`, 'No run is shown.');"
    assert [text for _, text in script_strings(source)] == ["step {} of it", "No run is shown."]


def test_prose_is_sentences_and_cells_without_code():
    source = "# A head\n\nOne sentence. Another one.\n\n```sh\na command here\n```\n\n| a cell | more |\n"
    assert [text for _, text in prose(source) if text.strip()] == [
        "# A head", "One sentence.", "Another one.", " a cell ", " more ",
    ]  # fmt: skip
