"""What browsers are told about pages of other origins, over HTTP. Chromium itself is not asked."""
import socket

import pytest
from conftest import within
from test_http_limits import completion, exchange, mock, raw_request  # noqa: F401: a fixture

PAGE = "https://chat.example"


def ask(server, method, path, *headers):
    """(status, fields, body) of a request without a body."""
    data = "\r\n".join([f"{method} {path} HTTP/1.1", "Host: x", *headers]) + "\r\n\r\n"
    status, text = exchange(server, data.encode())
    head, _, body = text.partition("\r\n\r\n")
    return status, dict(line.split(": ", 1) for line in head.split("\r\n")[1:]), body


def preflight(server, origin, method="POST", headers="authorization,content-type", path="/v1/chat/completions"):
    return ask(server, "OPTIONS", path, f"Origin: {origin}", f"Access-Control-Request-Method: {method}",
               f"Access-Control-Request-Headers: {headers}")


def test_without_the_option_no_page_gets_anything_R15(mock):  # noqa: F811
    server = mock("--api-key", "sk-1")
    assert preflight(server, PAGE)[0] == 401
    for path in ("/live", "/v1/models"):
        _, fields, _ = ask(server, "GET", path, f"Origin: {PAGE}", "Authorization: Bearer sk-1")
        assert not [name for name in fields if name.startswith("Access-Control")], fields
    keyless = mock()
    status, fields, _ = preflight(keyless, PAGE)
    assert status == 405 and fields["Allow"] == "POST" and "Access-Control-Allow-Origin" not in fields


def test_pages_of_allowed_origins_use_the_server_and_others_do_not_R15(mock):  # noqa: F811
    server = mock("--api-key", "sk-1", "--allowed-origins", f'["{PAGE}"]', "--allow-credentials")
    key = "Authorization: Bearer sk-1"
    status, fields, body = preflight(server, PAGE)  # without a key, as browsers ask
    assert status == 204 and body == "" and "Content-Length" not in fields
    assert fields["Access-Control-Allow-Origin"] == PAGE and fields["Vary"] == "Origin"
    assert fields["Access-Control-Allow-Methods"] == "POST" and fields["Access-Control-Allow-Credentials"] == "true"
    assert fields["Access-Control-Allow-Headers"] == "authorization,content-type"
    status, fields, body = preflight(server, "https://evil.example")
    assert status == 403 and "--allowed-origins" in body and "Access-Control-Allow-Origin" not in fields
    # The request itself: whole, streamed, refused.
    for request, expected in ((completion(), 200), (completion(stream=True), 200), (completion(temperature=9), 400)):
        status, text = exchange(server, raw_request("/v1/completions", request, key, f"Origin: {PAGE}",
                                                    "Content-Type: application/json"))
        assert status == expected and f"Access-Control-Allow-Origin: {PAGE}\r\n" in text, text
    status, fields, _ = ask(server, "GET", "/v1/models", f"Origin: {PAGE}")
    assert status == 401 and fields["Access-Control-Allow-Origin"] == PAGE  # a page may read why
    # What needs no question is refused to pages of other origins, as without the option.
    text_body = ("Content-Type: text/plain", key)
    assert exchange(server, raw_request("/v1/completions", completion(), f"Origin: {PAGE}", *text_body))[0] == 200
    assert exchange(server, raw_request("/v1/completions", completion(), "Origin: https://evil.example", *text_body))[0] == 415
    server.wait_idle(10)


@pytest.mark.parametrize("options, refused", [
    (["--allowed-methods", '["GET"]'], "--allowed-methods"), (["--allowed-headers", '["content-type"]'], "--allowed-headers")])
def test_methods_and_headers_are_limited_R15(mock, options, refused):  # noqa: F811
    server = mock("--allowed-origins", '["*"]', *options)
    status, _, body = preflight(server, PAGE)
    assert status == 403 and refused in body
    status, fields, _ = preflight(server, PAGE, method="GET", headers="content-type")
    assert status == 204 and fields["Access-Control-Allow-Origin"] == "*"


def test_a_preflight_that_brings_a_body_is_answered_and_cut_R15(mock):  # noqa: F811
    server = mock("--allowed-origins", '["*"]')
    with socket.create_connection(("127.0.0.1", server.port), timeout=within(20)) as sock:
        sock.sendall(f"OPTIONS / HTTP/1.1\r\nHost: x\r\nOrigin: {PAGE}\r\nAccess-Control-Request-Method: GET\r\n"
                     "Content-Length: 30000000\r\n\r\n".encode())
        answer = b""
        while chunk := sock.recv(65536):
            answer += chunk
    assert answer.startswith(b"HTTP/1.1 204 ") and b"Connection: close" in answer
