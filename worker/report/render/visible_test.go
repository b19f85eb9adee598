package render

import (
	"bytes"
	"encoding/json"
	"testing"
	"unicode/utf8"
)

// tricks are characters that change how the text around them is shown.
const tricks = "\u061c\u200b\u200d\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069" +
	"\ufeff\u2028\u2029\u00ad\u0085\u009b\U000e0041\U0001bca0"

func TestRune(t *testing.T) {
	for _, r := range tricks + "\x00\x1b\n\x7f" {
		if VisibleRune(r) {
			t.Errorf("%U is visible", r)
		}
	}
	for _, r := range "aZ~ é\u0301中אع😀" {
		if !VisibleRune(r) {
			t.Errorf("%U is not visible", r)
		}
	}
}

// TestJSON: no trick is left in the bytes, and a reader gets the same text.
func TestJSON(t *testing.T) {
	text := "a" + tricks + "é中😀"
	var plain bytes.Buffer
	enc := json.NewEncoder(&plain)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(text); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if n, err := (VisibleWriter{&out}).Write(plain.Bytes()); n != plain.Len() || err != nil {
		t.Errorf("written: %d, %v", n, err)
	}
	for _, r := range out.String() {
		if r != '\n' && !VisibleRune(r) {
			t.Errorf("%U is left", r)
		}
	}
	var back string
	if err := json.Unmarshal(out.Bytes(), &back); err != nil || back != text {
		t.Errorf("%q, %v", back, err)
	}
	if b := []byte(`{"a":"é"}`); &VisibleJSON(b)[0] != &b[0] {
		t.Error("copied for nothing")
	}
}

func FuzzJSON(f *testing.F) {
	f.Add([]byte(tricks))
	f.Add([]byte("\xff\xe2\x80"))
	f.Fuzz(func(t *testing.T, b []byte) {
		out := VisibleJSON(b)
		if utf8.Valid(b) != utf8.Valid(out) || hidden(out) >= 0 {
			t.Errorf("%q", out)
		}
	})
}
