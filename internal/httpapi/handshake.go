package httpapi

import (
	"encoding/base64"
	"net/http"
	"net/url"
	"strings"

	"github.com/microvmd/microvm/internal/fault"
)

// checkHandshake refuses what is no WebSocket handshake (RFC 6455, 4.2.1), and
// one that a page of another origin makes: browsers let every page open a
// WebSocket to every host, and say only whose page it is.
func checkHandshake(r *http.Request) error {
	key, err := base64.StdEncoding.DecodeString(strings.TrimSpace(r.Header.Get("Sec-WebSocket-Key")))
	switch {
	case !r.ProtoAtLeast(1, 1) || !hasToken(r.Header, "Connection", "upgrade") || !hasToken(r.Header, "Upgrade", "websocket"):
		return notWebSocket("this route is a WebSocket; connect to it with a WebSocket client, or read the output from .../stream")
	case r.Header.Get("Sec-WebSocket-Version") != "13":
		return notWebSocket("the WebSocket's version is not taken; connect with version 13")
	case len(r.Header.Values("Sec-WebSocket-Key")) != 1 || err != nil || len(key) != 16:
		return notWebSocket("Sec-WebSocket-Key is not 16 bytes in base64; connect with a WebSocket client")
	}
	origin := r.Header.Values("Origin")
	if len(origin) == 0 {
		return nil // no browser
	}
	page, err := url.Parse(origin[0])
	if len(origin) > 1 || err != nil || page.Host == "" || !strings.EqualFold(page.Host, r.Host) {
		return fault.New(fault.Forbidden, "a page of another origin may not attach a terminal; open it from a page that this host serves")
	}
	return nil
}

func notWebSocket(message string) error {
	return fault.New(fault.ParameterInvalid, "%s", message)
}

// hasToken looks for one of a header's comma-separated values.
func hasToken(header http.Header, name, token string) bool {
	for _, value := range header.Values(name) {
		for part := range strings.SplitSeq(value, ",") {
			if strings.EqualFold(strings.TrimSpace(part), token) {
				return true
			}
		}
	}
	return false
}
