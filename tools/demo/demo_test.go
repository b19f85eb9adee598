package main

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
	"time"
)

func TestScreen(t *testing.T) {
	x := newScreen(10, 3)
	rest := x.write([]byte("\x1b[2J\x1b[2;3Hab\x1b[1;38;2;255;0;16mc\x1b(B\x1b[m\x1b]0;title\x07d\r\ne\x1b[1;1H\x1b[38:5:196m▅\xe2\x96"))
	if string(rest) != "\xe2\x96" {
		t.Errorf("rest %q", rest)
	}
	if got := x.String(); got != "▅         \n  abcd    \ne         " {
		t.Errorf("%q", got)
	}
	if c := x.cells[14]; c.s != (style{fg: "#ff0010", bold: true}) || x.cells[15].s != (style{}) || x.cells[0].s.fg != "#ff0000" {
		t.Errorf("%+v, %+v, %+v", c, x.cells[15], x.cells[0])
	}
	if x.write([]byte("\x1b[99;99Hz\x1b[99;99Hz\x1b[Kzz\n\n\n\n")) != nil {
		t.Error("not everything was obeyed")
	}
}

// TestAnimation: the result is well-formed XML, shows names as text, and writes each line once.
func TestAnimation(t *testing.T) {
	first, second := newScreen(20, 3), newScreen(20, 3)
	first.write([]byte("<script>&\r\n\x1b[7mtwo\x1b[m"))
	second.write([]byte("<script>&\r\n▁▁█"))
	text := animation([]frame{{first, time.Second}, {second, 3 * time.Second}})
	for d := xml.NewDecoder(strings.NewReader(text)); ; {
		_, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err, text)
		}
	}
	if strings.Count(text, "&lt;script&gt;&amp;") != 1 || strings.Count(text, `<use href="#l0"`) != 2 || !strings.Contains(text, "#f1{visibility:visible}") {
		t.Errorf("%s", text)
	}
}
