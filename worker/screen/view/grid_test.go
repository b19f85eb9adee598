package view

import (
	"strings"
	"testing"
)

func TestTextIsCutAndMarked(t *testing.T) {
	for text, want := range map[string]string{
		"abc":                  "abc",
		"abcdefgh":             "abcdefgh",
		"abcdefghi":            "abcdefg…",
		"abcdefgh   ":          "abcdefgh", // only spaces are cut
		"中文字中":                 "中文字中",
		"a中文字中":                "a中文字…",
		"中文字中文":                "中文字 …",
		"e\u0301e\u0301":       "ee",
		"a\x1b[31m":            "a?[31m",
		"a\u202eb\nc\td":       "a?b c d",
		"\U0001f1e9\U0001f1ea": "?",
		"\xff\xfe":             "??",
	} {
		g := NewGrid(9, 1)
		g.Text(0, 0, 8, Style{}, text)
		if got := strings.TrimSuffix(g.String(), "\n"); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
		if c := g.At(8, 0); c.Rune != ' ' {
			t.Errorf("%q: %q beyond the limit", text, c.Rune)
		}
	}
}

// TestHalfOfAWideCharacter: a character over one half of a wide one removes the other half.
func TestHalfOfAWideCharacter(t *testing.T) {
	for at, want := range []string{"x 文", " x文", "中x", "中 x"} {
		g := NewGrid(4, 1)
		g.Text(0, 0, 4, Style{}, "中文")
		g.Set(at, 0, 'x', Style{})
		if got := strings.TrimSuffix(g.String(), "\n"); got != want {
			t.Errorf("column %d: %q, want %q", at, got, want)
		}
	}
}

func TestASCII(t *testing.T) {
	g := NewGrid(20, 1)
	g.ASCII = true
	g.Text(0, 0, 20, Style{}, "├─▲ é中█…×")
	if got := g.String(); got != "|-! ??#.x\n" {
		t.Errorf("%q", got)
	}
}

func TestOutsideOfTheScreen(t *testing.T) {
	g := NewGrid(3, 2)
	for _, at := range [][2]int{{-1, 0}, {3, 0}, {0, -1}, {0, 2}} {
		g.Set(at[0], at[1], 'x', Style{})
		g.Text(at[0], at[1], 100, Style{}, "中x")
		g.Fill(at[0], at[1], 100, Style{})
		g.Right(at[0], at[1], Style{}, "xyz")
	}
	NewGrid(-1, 5).Text(0, 0, 5, Style{}, "x")
	if g = NewGrid(1<<30, 1); g.Width > maxSide {
		t.Errorf("%d columns", g.Width)
	}
}

func TestWrap(t *testing.T) {
	for _, c := range []struct {
		text         string
		width, lines int
		want         string
	}{
		{"one two three", 7, 5, "one two|three"},
		{"one two three", 7, 1, "one tw…"},
		{"abcdefghij kl", 4, 5, "abcd|efgh|ij|kl"},
		{"中文字", 3, 5, "中|文|字"},
		{"中文字", 1, 2, "中|…"},
		{"  \n ", 5, 2, ""},
	} {
		if got := strings.Join(Wrap(c.text, c.width, c.lines), "|"); got != c.want {
			t.Errorf("%q in %d: %q, want %q", c.text, c.width, got, c.want)
		}
	}
}

// TestWrapKeepsDurations: a line does not end between a number and its unit.
func TestWrapKeepsDurations(t *testing.T) {
	for _, text := range []string{
		"it is active for 17 min 51 s, and then waits", "blocks since (≥ 3 min 17 s) or before", "it has 120 MB, 55 % of all", "took 1 d 3 h; waits for 7",
	} {
		for width := 15; width < 40; width++ {
			for _, line := range Wrap(text, width, 20) {
				first, _, _ := strings.Cut(line, " ")
				switch strings.TrimRight(first, ".,;)") {
				case "s", "min", "51", "MB", "%", "h":
					t.Errorf("width %d: a line begins with %q", width, line)
				}
			}
		}
	}
	if got := strings.Join(Wrap("waits 3 times for 12 sessions", 8, 9), "|"); got != "waits 3|times|for 12|sessions" {
		t.Errorf("%q", got)
	}
}
