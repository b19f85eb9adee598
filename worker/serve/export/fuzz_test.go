package export

import (
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
)

// FuzzAnswer: no answer of a receiver makes the worker fail.
func FuzzAnswer(f *testing.F) {
	f.Add("application/proto", []byte(nil))
	f.Add(protobufType, appendBytes(nil, 1, appendString(appendNumber(nil, 1, 3), 2, "three are bad")))
	f.Add("application/proto; charset=utf-8", []byte(`{"code":"internal","message":"x"}`))
	f.Add("text/html", []byte("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"))
	f.Fuzz(func(t *testing.T, contentType string, body []byte) {
		for _, p := range []protocol{pyroscope{}, otlp{}} {
			if _, err := p.accepted(contentType, body); err == nil && len(body) > 0 {
				if _, _, size := protowire.ConsumeField(body); size < 0 {
					t.Errorf("%T accepted %q", p, body)
				}
			}
			_ = p.refusal(body)
		}
	})
}

// FuzzHeaders: headers that are read can be sent.
func FuzzHeaders(f *testing.F) {
	f.Add([]byte("Authorization: Bearer x\nX-Scope-OrgID: a\n# comment\n"))
	f.Add([]byte("a:b\r\nContent-Length: 5\r\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		headers, err := parseHeaders(data)
		if err != nil {
			return
		}
		for name, values := range headers {
			for _, value := range values {
				if !validName(name) || !validValue(value) {
					t.Errorf("%q: %q", name, value)
				}
			}
		}
	})
}
