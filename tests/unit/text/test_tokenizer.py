from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.api.letters import write_letters

from forearm.errors import ConfigError
from forearm.text.tokenizer.tokenizer import Tokenizer, load_tokenizer


def test_a_tokenizer_of_a_folder_encodes_as_the_one_that_was_saved(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.as_transformers.save_pretrained(tmp_path)

    loaded = load_tokenizer(tmp_path)

    assert loaded.encode("the quick fox") == tokenizer.encode("the quick fox")
    assert loaded.vocab_size == tokenizer.vocab_size
    assert loaded.special_ids == tokenizer.special_ids


def test_ids_past_the_vocabulary_have_no_text(tokenizer: Tokenizer) -> None:
    past = tokenizer.vocab_size + 3

    assert (tokenizer.decode([past]), tokenizer.piece(past), tokenizer.token_bytes(past)) == ("", "", b"")


def test_a_folder_without_a_tokenizer_is_said_at_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--tokenizer"):
        load_tokenizer(tmp_path)


def test_the_text_layer_imports_no_torch() -> None:
    code = (
        "import sys, forearm.text.templates.chat_template;"
        "import forearm.text.tokenizer.detokenizer, forearm.text.tokenizer.tokenizer;"
        "sys.exit('torch' in sys.modules)"
    )

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_text_layer_does_not_complain_where_there_is_no_torch() -> None:
    code = (
        "import importlib.util as util; found = util.find_spec;"
        "util.find_spec = lambda name, *rest: None if name == 'torch' else found(name, *rest);"
        "import forearm.text.tokenizer.tokenizer, transformers; assert not transformers.is_torch_available()"
    )

    run = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)

    assert (run.returncode, run.stderr) == (0, "")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": {"type": "BPE", "vocab": 5, "merges": []}}, "expected a map"),
        ({"pre_tokenizer": {"type": "Odd"}}, "its pre_tokenizer is of a kind"),
        ({"model": {"type": "BPE", "vocab": {}, "merges": []}, "added_tokens": []}, "control tokens"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_tokenizer_that_cannot_be_read_is_told_in_words_of_its_file(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    file = write_letters(tmp_path, template=None) / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))

    with pytest.raises(ConfigError, match=words) as refused:
        load_tokenizer(tmp_path)
    assert not re.search("untagged|Wrapper|Py[A-Z]", str(refused.value))
