"""``config.toml`` in the home, and ``fsm-agent config``, which shows and writes it."""

from __future__ import annotations

import stat
import tomllib
from pathlib import Path

import pytest

from fsm_agent import Agent, Settings
from fsm_agent.cli.arguments import nest_settings
from fsm_agent.conversation.vendors import runtime_family
from fsm_agent.errors import ConfigError
from fsm_agent.providers.config_file import check_config, config_of
from fsm_agent.settings.errors import every_setting
from fsm_agent.testing import ScriptedModel, ScriptedServer, status, text
from tests.helpers.command_line import Cli

WORK = '[providers.work]\nbase_url = "http://x"\n'


def written(home: Path, content: str) -> Path:
    home.mkdir(parents=True, exist_ok=True)
    (home / "config.toml").write_text(content)
    return home


@pytest.fixture
def cli(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.setenv("COLUMNS", "200")
    return cli


# What the file does


def test_an_argument_wins_over_the_environment_over_the_file_over_the_defaults(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(home, "[settings]\nmax_iterations = 40\napi_max_retries = 7\nempty = { nudges = 5, retries = 9 }")
    monkeypatch.setenv("FSM_AGENT_API_MAX_RETRIES", "8")
    monkeypatch.setenv("FSM_AGENT_EMPTY__NUDGES", "6")
    set_by_hand = {"empty": {"prefills": 4}, "temperature": 1}
    found = Agent(ScriptedModel(), home=home, settings=set_by_hand).settings
    assert (found.max_iterations, found.api_max_retries, found.temperature) == (40, 8, 1)
    assert found.empty.model_dump() == {"nudges": 6, "prefills": 4, "retries": 9}
    assert found.tool == Settings().tool
    whole = Settings(max_iterations=3)
    assert Agent(ScriptedModel(), home=home, settings=whole).settings == whole


def test_a_provider_of_ones_own_is_a_model_and_a_fallback_everywhere(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORK_KEY", "sk-of-work")
    with ScriptedServer([status(503), status(503)]) as broken, ScriptedServer([text("from home")]) as good:
        written(
            home,
            f"""
            model = "work:big"
            fallbacks = [{{ model = "play:small", context_window = 32000 }}]
            settings.api_max_retries = 1
            settings.backoff.exception = {{ base = 0, cap = 0 }}
            [providers.work]
            base_url = "{broken.url}"
            key_env = "WORK_KEY"
            context_window = 64000
            windows = {{ big = 128000 }}
            [providers.play]
            base_url = "{good.url}"
            """,
        )
        result = Agent(home=home, toolsets=[]).run_conversation("hi")
        assert (result.final_response, result.provider, result.model) == ("from home", "play", "small")
        assert result.fallback_activated
        assert broken.requests[0].headers["authorization"] == "Bearer sk-of-work"
    choice = config_of(home).chooser()
    assert (choice.window, choice.why) == (128_000, "the config file names the model")
    assert config_of(home).chooser("work:other").window == 64_000


def test_the_environment_names_another_model_than_the_file(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    near = 'providers.near = { base_url = "http://127.0.0.1:1/v1", like = "deepseek" }'
    written(home, f'model = "local:m"\n{near}')
    monkeypatch.setenv("FSM_AGENT_MODEL", "near:x")
    choice = config_of(home).chooser()
    assert (choice.profile.name, choice.model, choice.keys, choice.local) == ("near", "x", (), True)
    assert runtime_family(choice.runtime()).name == "deepseek"


def test_no_file_is_fine(home: Path) -> None:
    assert config_of(home).profiles == config_of(home.parent).profiles
    assert not home.exists()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("max_iterations = 4",
         "unknown key max_iterations; allowed: model, fallbacks, auxiliary, settings, providers, mcp; settings b"),
        ("[settings]\nmax_iterations = -4",
         "setting max_iterations is out of range; given: -4; allowed: whole number 0 to 100,000"),
        ("[settings]\nmax_iteration = 4", "unknown setting max_iteration; given: 4; allowed: max_iterations"),
        ("settings = 4", "settings has the wrong type; given: 4; allowed: a table, [settings]"),
        ("model = 4", "model has the wrong type; given: 4"),
        ("model = x", "the config file is not TOML"),
        ('fallbacks = "a:b"', "fallbacks has the wrong type; given: a:b; allowed: a list"),
        ('fallbacks = [{ model = "a:b", api_key = "sk-1234567890" }]',
         "fallbacks holds a key; given: api_key; allowed: key_env"),
        ("[providers.work]", "providers.work.base_url is missing; allowed: the address of the server"),
        ('[providers.work]\nbase_url = "work"', "providers.work.base_url cannot be used; given: work"),
        (f'{WORK}api_key = "sk-1"', "providers.work.api_key holds a key; given: api_key"),
        (f'{WORK}like = "y"', "providers.work.like names an unknown provider; given: y"),
        (f'{WORK}url = "y"', "unknown key providers.work.url; allowed: base_url, like"),
        ('[providers.openai]\nbase_url = "http://x"',
         "[providers.openai] cannot have this name, which is a known provider"),
        ('[providers.Wörk]\nbase_url = "http://x"', "the config file is not TOML"),
        ('[providers."a b"]\nbase_url = "http://x"',
         "[providers.a b] cannot have this name; given: a b; allowed: up to"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_used_is_one_line_that_names_it(
    content: str, says: str, home: Path, cli: Cli
) -> None:
    written(home, content)
    with pytest.raises(ConfigError) as raised:
        Agent(ScriptedModel(), home=home)
    assert str(raised.value).startswith(f"in {home / 'config.toml'}: ") or "not TOML" in says
    assert says in str(raised.value)
    assert cli("config") == (2, "", f"fsm-agent: {raised.value}\n")
    assert cli("config", "set", "max_iterations", "3")[0] == 2
    assert (home / "config.toml").read_text() == content
    assert "sk-1" not in str(raised.value)


def test_a_variable_that_cannot_be_used_is_one_line_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("FSM_AGENT_APPROVAL__ALLOW", "ls *")
        line = r"^FSM_AGENT_APPROVAL__ALLOW cannot be read; given: ls \*; allowed: JSON"
        for use in (Settings, lambda: Settings.of(None, {"max_iterations": 3})):
            with pytest.raises(ConfigError, match=line):
                use()
    monkeypatch.setenv("FSM_AGENT_EMPTY__NUDGES", "many")
    with pytest.raises(ConfigError) as raised:
        Settings()
    assert str(raised.value) == (
        "setting empty.nudges (FSM_AGENT_EMPTY__NUDGES) is out of range; given: many; allowed: whole number 0"
        " to 1,000,000"
    )


def test_every_setting_is_described_with_its_default() -> None:
    defaults = Settings().model_dump()
    for name, setting in every_setting().items():
        value = defaults
        for key in name.split("."):
            value = value[key]
        assert value == setting.default
        assert setting.allowed
    for name, allowed in (
        ("compression.min_progress", "number above 0 to below 1"),
        ("reasoning_effort", "none, minimal, low, medium, high, xhigh, max or nothing"),
        ("approval.policy", "table of ask, allow, deny"),
    ):
        assert every_setting()[name].allowed == allowed


# The commands


def test_a_value_is_set_read_and_taken_out_and_comments_stay(home: Path, cli: Cli) -> None:
    written(home, '# mine\nmodel = "offline:demo"  # for now\n')
    told = f"compression.threshold = 0.6  in {home}/config.toml\n"
    assert cli("config", "set", "compression.threshold", "0.6") == (0, told, "")
    assert cli("config", "set", "approval.deny", '["terminal(rm *)"]')[0] == 0
    assert cli("config", "set", "mcp.start_timeout", "3")[0] == 0
    assert cli("config", "set", "mcp.servers.time.command", "mcp-server-time")[0] == 0
    assert cli("config", "get", "compression.threshold") == (0, "0.6\n", "")
    assert cli("config", "get", "model") == (0, "offline:demo\n", "")
    assert cli("config", "get", "approval.deny") == (0, '["terminal(rm *)"]\n', "")
    content = (home / "config.toml").read_text()
    assert content.startswith('# mine\nmodel = "offline:demo"  # for now\n')
    assert tomllib.loads(content) == {
        "model": "offline:demo",
        "settings": {"compression": {"threshold": 0.6}, "approval": {"deny": ["terminal(rm *)"]},
                     "mcp": {"start_timeout": 3}},
        "mcp": {"servers": {"time": {"command": "mcp-server-time"}}},
    }  # fmt: skip
    for name in ("compression.threshold", "approval.deny", "mcp.start_timeout", "mcp.servers.time.command"):
        assert cli("config", "unset", name) == (0, f"{name} is no longer set in {home}/config.toml\n", "")
    assert (home / "config.toml").read_text().strip() == '# mine\nmodel = "offline:demo"  # for now'


@pytest.mark.parametrize("text", ["3.13", "true", "007", "1e5", "[1]", " two  words ", "é"])
def test_a_setting_that_is_a_text_comes_back_as_it_was_given(text: str, cli: Cli) -> None:
    assert cli("config", "set", "prompt.ephemeral", text)[0] == 0
    assert cli("config", "get", "prompt.ephemeral") == (0, f"{text}\n", "")
    assert nest_settings([f"prompt.ephemeral={text}", "max_iterations= 3"]) == {
        "prompt": {"ephemeral": text},
        "max_iterations": 3,
    }


def test_what_could_not_be_used_is_not_written(home: Path, cli: Cli) -> None:
    written(home, "[settings]\nmax_iterations = 5\n")
    for arguments, says in (
        (("max_iterations", "many"), "setting max_iterations is out of range; given: many"),
        (("max_iteration", "3"), "unknown setting max_iteration; allowed: max_iterations"),
        (("max_iterations.deep", "3"), "max_iterations holds a value, not a table"),
        (("max_iterations", "null"), "given: null; allowed: a value; fsm-agent config unset max_iterations"),
        (("providers.work.base_url", "nowhere"), "providers.work.base_url cannot be used"),
        (("model", "3"), "model has the wrong type"),
    ):
        err = cli.refused("config", "set", *arguments)
        assert says in err
    assert cli("config", "unset", "temperature")[0] == 2
    assert (home / "config.toml").read_text() == "[settings]\nmax_iterations = 5\n"


def test_a_new_file_is_its_owners_and_the_environment_is_not_hidden(
    home: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FSM_AGENT_MAX_ITERATIONS", "9")
    code, _, err = cli("config", "set", "max_iterations", "12")
    assert (code, err) == (0, "fsm-agent: FSM_AGENT_MAX_ITERATIONS is set and wins over the file\n")
    assert stat.S_IMODE((home / "config.toml").stat().st_mode) == 0o600
    assert cli("config", "get", "max_iterations") == (0, "9\n", "")
    assert cli("config", "path") == (0, f"{home}/config.toml\n", "")


def test_what_is_shown_says_where_it_comes_from(
    home: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli("config")[1].startswith(f"file         {home}/config.toml (not there; none is needed)\n")
    work = '[providers.work]\nbase_url = "http://127.0.0.1:9/v1"\n'
    written(home, f'model = "work:m"\n[settings]\nstale.stream = 5\n{work}')
    monkeypatch.setenv("FSM_AGENT_EMPTY__NUDGES", "6")
    monkeypatch.setenv("FSM_AGENT_MAX_ITERATION", "6")
    code, out, err = cli("config")
    line = "FSM_AGENT_MAX_ITERATION in the environment is not a setting; FSM_AGENT_MAX_ITERATIONS, perhaps"
    assert (code, err) == (0, f"fsm-agent: {line}\n")
    lines = [line.split() for line in out.splitlines()]
    assert ["model", "work:m", "(from", "config.toml)"] in lines
    assert ["providers", "work", "at", "http://127.0.0.1:9/v1"] in lines
    assert ["stale.stream.above_50k", "5", "240", "config.toml"] in lines
    assert ["empty.nudges", "6", "1", "FSM_AGENT_EMPTY__NUDGES"] in lines
    rows = {row["setting"]: row for row in cli.json("config", "list")}
    assert list(rows) == list(every_setting())
    assert rows["empty.nudges"] == {
        "setting": "empty.nudges", "value": 6, "default": 1, "allowed": "whole number 0 to 1,000,000",
        "from": "FSM_AGENT_EMPTY__NUDGES",
    }  # fmt: skip
    shown = cli.json("config", "show")
    assert [row["setting"] for row in shown["settings"]] == [
        "stale.stream.base", "stale.stream.above_50k", "stale.stream.above_100k", "empty.nudges",
    ]  # fmt: skip
    assert shown["unknown_variables"] == ["FSM_AGENT_MAX_ITERATION"]
    assert line in cli("doctor")[1]
    code, out, err = cli("run", "hi", "--model", "offline:demo", "--quiet")
    assert (code, err) == (0, f"fsm-agent: {line}\n")


def test_a_group_without_a_command_is_its_help(cli: Cli) -> None:
    for group in ((), ("sessions",), ("approvals",)):
        code, out, err = cli(*group)
        assert (code, err) == (0, "")
        assert out.startswith(" ".join(("Usage: fsm-agent", *group)))
        assert "Commands:\n" in out


def test_the_example_of_the_docs_is_a_good_file() -> None:
    page = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
    example = page.partition("```toml\n")[2].partition("```")[0]
    config = check_config(Path("config.toml"), tomllib.loads(example))
    assert (config.model, config.profiles["work"].key_env) == ("work:qwen3-coder", "WORK_API_KEY")
    assert config.fallbacks[0] == {"model": "openai:gpt-5-mini"}
