package view

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestResult: the output of a command begins with its first line, scrolls, and can be searched. Esc ends the command, then closes
// its output.
func TestResult(t *testing.T) {
	t.Parallel()
	d, s := incident(), NewState("/srv/pg")
	s.Page, s.PID, s.Program = PageSession, 4712, "/opt/my tools/psb"
	s.Result = &Result{Command: s.CommandLine([]string{"profile", "-D", "/srv/my pg"}), Started: noon.Add(-3200 * time.Millisecond)}
	draw := func() string {
		g := NewGrid(80, 24)
		Draw(g, s, d, noon)
		return g.String()
	}
	if text := draw(); !strings.Contains(text, "$ '/opt/my tools/psb' profile -D '/srv/my pg'") || !strings.Contains(text, "runs for 3.0 s") ||
		!strings.Contains(text, "Esc end it") || strings.Contains(text, "no output") {
		t.Errorf("a command that runs:\n%s", text)
	}
	if action := Handle(s, d, "1"); action != None || s.Page != PageSession || s.Message != "Esc ends the command." {
		t.Errorf("another key: action %d, %q", action, s.Message)
	}
	if action := Handle(s, d, "ctrl-c"); action != Cancel || s.Result == nil {
		t.Errorf("^C: action %d", action)
	}
	var output strings.Builder
	for i := range 100 {
		fmt.Fprintf(&output, "%5.1f %% function%d\n", 50/float64(i+1), i)
	}
	s.Result.Output, s.Result.Notes, s.Result.Ended = output.String(), "a note\x1b[2J\n"+strings.Repeat("w", 200), noon
	text := draw()
	if lines := strings.Split(text, "\n"); !strings.Contains(text, "was ended at 12:00:00 UTC") || !strings.Contains(lines[5], "50.0 % function0") ||
		!strings.Contains(text, "↓ 87 more lines") || strings.Contains(text, "function20") {
		t.Errorf("the begin:\n%s", text)
	}
	Handle(s, d, "end")
	if text := draw(); !strings.Contains(text, "function99") || !strings.Contains(text, "a note?[2J") || strings.Contains(text, "more line") ||
		!strings.Contains(text, "\n     www") {
		t.Errorf("the end:\n%s", text)
	}
	press(s, d, "home", "/", "z", "z", "enter")
	if text := draw(); s.Message != "Not found: zz" || !strings.Contains(text, "function0") {
		t.Errorf("%q:\n%s", s.Message, text)
	}
	press(s, d, "/", "N", "4", "2", "backspace", "backspace", "backspace", "o", "n", "4", "2", "enter")
	if text := draw(); !strings.Contains(text, "function42") || strings.Contains(text, "function41") {
		t.Errorf("a search:\n%s", text)
	}
	if got := Command(s, d); got != s.Result.Command || press(s, d, "y") != Copy {
		t.Errorf("y copies %q", got)
	}
	s.Result.canceled, s.Result.Failed = false, "exit status 1"
	if text := draw(); !strings.Contains(text, "✗ the command failed: exit status 1") || !strings.Contains(text, "Esc close") {
		t.Errorf("a command that failed:\n%s", text)
	}
	if action := press(s, d, "q"); action == Quit || s.Result != nil || !strings.Contains(draw(), "blocked by") {
		t.Errorf("q: action %d\n%s", action, draw())
	}
}
