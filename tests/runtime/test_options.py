"""What the whole process chooses about watching calls: read from the environment and from code, wrong values named."""

from __future__ import annotations

import logging

import pytest

import ravi_otel
from ravi_otel._runtime.settings import Settings, read_options
from ravi_otel.policy._checks import switch


def options(providers=None, **environ):
    return read_options(content=False, each_chunk=False, providers=providers, environ=environ)


def test_without_anything_said_streams_are_asked_for_their_usage():
    assert options().include_usage
    assert options().usage_hosts == frozenset()


@pytest.mark.parametrize("word", ["off", "0", "FALSE", " no "])
def test_no_stream_is_asked_where_that_is_switched_off(word):
    assert not options(RAVI_INCLUDE_USAGE=word).include_usage


def test_hosts_are_a_list_with_commas_in_any_case():
    assert options(RAVI_USAGE_HOSTS="LLM.example.com, localhost:8000,,[::1]:9").usage_hosts == {
        "llm.example.com",
        "localhost:8000",
        "[::1]:9",
    }


@pytest.mark.parametrize("host", ["*", "https://llm.example.com", "llm.example.com/v1", "*.example.com", "a b", "user@host"])
def test_what_is_no_host_is_refused_wherever_it_stands(host):
    for given in ({"RAVI_USAGE_HOSTS": host}, {"RAVI_PROVIDERS": f"{host}=openai"}, {"providers": {host: "openai"}}):
        with pytest.raises(ravi_otel.ConfigurationError, match="which is no host: write its name alone"):
            options(**given)


@pytest.mark.parametrize("port", ["99999", "65536", "0", "0443", "1" * 30])
def test_a_port_that_no_server_has_is_refused_wherever_it_stands(port):
    host = f"llm.example.com:{port}"
    listed = f"{host}=openai"
    for given in ({"RAVI_USAGE_HOSTS": host}, {"RAVI_PROVIDERS": listed}, {"RAVI_FORMATS": listed}, {"providers": {host: "openai"}}):
        with pytest.raises(ravi_otel.ConfigurationError, match=f"{host[:20]}.*, whose port {port[:20]} no server has: write one from 1 to"):
            options(**given)
    with pytest.raises(ravi_otel.ConfigurationError, match=r"instrument\(formats\) holds .*no server has"):
        ravi_otel.instrument(formats={host: "openai"})


def test_providers_of_the_program_go_before_those_of_the_environment():
    found = options(providers={"A.example.com": "vllm"}, RAVI_PROVIDERS="a.example.com=openai, b.example.com:80=groq")
    assert found.providers == {"a.example.com": "vllm", "b.example.com:80": "groq"}


@pytest.mark.parametrize("line", ["a.example.com", "=openai", "a.example.com="])
def test_a_line_without_host_or_provider_is_refused(line):
    with pytest.raises(ravi_otel.ConfigurationError, match="RAVI_PROVIDERS holds"):
        options(RAVI_PROVIDERS=line)


@pytest.mark.parametrize("given", [["a"], "a=b", {"a": 3}, {"": "openai"}, {"a": ""}])
def test_providers_that_are_no_map_of_texts_are_refused(given):
    with pytest.raises(ravi_otel.ConfigurationError, match=r"instrument\(providers"):
        ravi_otel.instrument(providers=given)


@pytest.mark.parametrize("safe", [True, False])
def test_a_switch_that_says_neither_is_taken_for_the_safe_one_and_warned_of_once(safe, caplog):
    environ = {"RAVI_TRY": f"maybe {safe}"}
    with caplog.at_level(logging.WARNING, "ravi_otel"):
        assert [switch(environ, "RAVI_TRY", default=False, safe=safe) for _ in range(2)] == [safe, safe]
    assert [record.getMessage() for record in caplog.records] == [
        f"ravi-otel: RAVI_TRY='maybe {safe}' is neither on nor off, and is taken for {'on' if safe else 'off'}."
    ]


def test_redaction_that_is_asked_for_in_a_wrong_word_is_done():
    found = Settings().content({"RAVI_REDACT": "redact_secrets", "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "SPAN_ONLY"})
    assert found.redact is ravi_otel.redact_secrets


def test_an_empty_list_of_clients_is_refused():
    with pytest.raises(ravi_otel.ConfigurationError, match=r"instrument\(client=\[\]\) names no client"):
        ravi_otel.instrument(client=[])


def test_an_unknown_admission_is_told_those_there_are():
    with pytest.raises(ravi_otel.ConfigurationError, match="give one of 'estimate', 'strict', 'after'"):
        ravi_otel.instrument(admission="x")
