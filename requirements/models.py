"""``make models``: write ``fsm_agent/providers/models.json`` anew from a wheel of ``litellm``, whose data
about models is kept up to date by many. Only the data is taken, of the vendors that are asked directly."""

from __future__ import annotations

import json
import re
import sys
import zipfile
from pathlib import Path
from typing import Any

TARGET = Path(__file__).parents[1] / "fsm_agent" / "providers" / "models.json"
VENDORS = (
    "anthropic", "dashscope", "deepseek", "gemini", "groq", "mistral", "moonshot", "openai", "xai", "zai",
)  # fmt: skip
DATED = re.compile(r"-(\d{4}-\d{2}-\d{2}|\d{8})$")
READS = {"image": "supports_vision", "audio": "supports_audio_input", "file": "supports_pdf_input"}
DOES = {
    "tools": "supports_function_calling",
    "thinks": "supports_reasoning",
    "schema": "supports_response_schema",
}
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


def main(wheel: str) -> int:
    """Read the wheel, write the file; returns the exit code."""
    with zipfile.ZipFile(wheel) as file:
        listed = json.loads(file.read("litellm/model_prices_and_context_window_backup.json"))
        notice = next(name for name in file.namelist() if name.endswith("licenses/LICENSE"))
        TARGET.with_name("models.LICENSE").write_bytes(file.read(notice))
    tables: dict[str, dict[str, Any]] = {vendor: {} for vendor in VENDORS}
    for name, entry in sorted(listed.items()):
        vendor = entry.get("litellm_provider")
        if vendor in tables and entry.get("mode") in ("chat", "responses") and entry.get("max_input_tokens"):
            tables[vendor][name.removeprefix(f"{vendor}/").lower().replace(".", "-")] = _facts(entry)
    version = Path(wheel).name.split("-")[1]
    lines = [f'{{\n"source": "litellm {version}",\n"models": {{']
    for number, (vendor, models) in enumerate(sorted(tables.items())):
        rows = ",\n".join(
            f"  {json.dumps(name)}: {json.dumps(facts)}"
            for name, facts in sorted(models.items())
            if not DATED.search(name) or models.get(DATED.sub("", name)) != facts
        )
        lines.append(f'{"," * bool(number)}\n"{vendor}": {{\n{rows}\n}}')
    TARGET.write_text("".join([*lines, "\n}\n}\n"]), encoding="utf-8")
    print(f"{TARGET}: {sum(map(len, tables.values()))} models of {len(VENDORS)} vendors, litellm {version}")
    return 0


def _facts(entry: dict[str, Any]) -> dict[str, Any]:
    facts: dict[str, Any] = {"window": int(entry["max_input_tokens"])}
    if entry.get("max_output_tokens"):
        facts["output"] = int(entry["max_output_tokens"])
    seen = entry.get("supported_modalities", ())
    facts["reads"] = [kind for kind, flag in READS.items() if entry.get(flag) or kind in seen]
    facts["does"] = [what for what, flag in DOES.items() if entry.get(flag)]
    more = {level for level in EFFORTS if entry.get(f"supports_{level}_reasoning_effort")}
    levels = entry.get("reasoning_effort_levels") or (more and more | {"low", "medium", "high"})
    facts["efforts"] = [level for level in EFFORTS if level in levels]
    return {name: value for name, value in facts.items() if value}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
