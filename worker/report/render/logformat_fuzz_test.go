package render

import (
	"bytes"
	"encoding/json"
	"testing"
)

// FuzzLine: every line of JSON gives a line of JSON, and a datagram without line feeds in names and values.
func FuzzLine(f *testing.F) {
	f.Add([]byte(sample))
	f.Add([]byte(`{"level":7,"message":null,"":[],"a\nb":"\u0000\ud800"}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		out, err := otel(text)
		if err != nil {
			return
		}
		if !json.Valid(out) {
			t.Errorf("%q: not JSON: %q", text, out)
		}
		l, err := parse(text)
		if err != nil {
			t.Fatal(err)
		}
		data := datagram(&l, true)
		if !bytes.HasPrefix(data, []byte("MESSAGE")) || data[len(data)-1] != '\n' {
			t.Errorf("%q: %q", text, data)
		}
	})
}
