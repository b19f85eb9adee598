package view

import (
	"strings"
	"time"

	"pg_stat_backtrace/worker/report/units"
)

// Result is the output of a command that the user has started by the key p, w or i. The screen shows it in place of a page.
type Result struct {
	// Command is the command line.
	Command string
	// Started and Ended are the times of its begin and its end; Ended is zero while the command runs.
	Started, Ended time.Time
	// Failed says why the command failed; empty: it did not fail.
	Failed string
	// Output and Notes are its standard output and standard error so far.
	Output, Notes string

	scroll   int  // index of the first line that is shown
	width    int  // of the lines that are shown
	canceled bool // the user has ended the command
}

func (r *Result) runs() bool { return r.Ended.IsZero() }

// resultKey handles a key while the screen shows a Result.
func (s *State) resultKey(d *Data, key string) Action {
	r := s.Result
	steps := map[string]int{
		"up": -1, "k": -1, "down": 1, "j": 1, "pgup": -10, "pgdn": 10, "b": -10, " ": 10, "home": -1 << 20, "end": 1 << 20,
		WheelUp: -wheelLines, WheelDown: wheelLines,
	}
	if step, ok := steps[key]; ok {
		r.scroll = max(0, r.scroll+step)
		return None
	}
	switch key {
	case "ctrl-c", "esc", "backspace", "q":
		switch {
		case r.runs() && !r.canceled:
			r.canceled = true
			return Cancel
		case key == "ctrl-c":
			return Quit
		default:
			s.Result = nil
		}
	case "/":
		s.typing, s.typed = typingSearch, ""
	case "n":
		s.find(d, 1)
	case "N":
		s.find(d, -1)
	case "?":
		s.Help = true
	case "m":
		s.Mouse = !s.Mouse
		return Mouse
	case "y":
		return Copy
	default:
		s.Message = "Esc closes the output of the command."
		if r.runs() {
			s.Message = "Esc ends the command."
		}
	}
	return None
}

// lines returns the lines of the pane for a width: first the output, which has the most important first, then the notes.
func (r *Result) lines(width int) (list []panelLine) {
	const most, indent = 20_000, "    "
	add := func(style Style, text string) {
		for line := range strings.Lines(strings.ReplaceAll(text, "\t", indent)) {
			line = strings.TrimRight(line, " \r\n")
			for first := true; (first || line != "") && len(list) < most; first = false {
				lead, room := "", width
				if !first {
					lead, room = indent, max(1, width-len(indent))
				}
				head, rest := cutAt(line, room)
				if at := strings.LastIndexByte(head, ' '); rest != "" && at > len(head)/2 { // between words, if a line does not get too short
					head, rest = head[:at], strings.TrimLeft(head[at:]+rest, " ")
				}
				list = append(list, panelLine{lead: lead, text: head, style: style})
				line = rest
			}
		}
	}
	add(plain, r.Output)
	add(dim, r.Notes)
	return list
}

// result draws the Result of the state.
func (c *canvas) result(y, end int) {
	r := c.s.Result
	for _, line := range Wrap("$ "+r.Command, c.Width-2, 3) {
		c.Text(1, y, c.Width, bold, line)
		y++
	}
	style, status := dim, "ended at "+r.Ended.Local().Format("15:04:05 MST")
	switch {
	case r.runs() && r.canceled:
		status = "is being ended"
	case r.runs():
		style, status = live, " runs for "+units.Age(c.now.Sub(r.Started).Truncate(time.Second))+" "
	case r.canceled:
		status = "was ended at " + r.Ended.Local().Format("15:04:05 MST")
	case r.Failed != "":
		style, status = alarm, "✗ the command failed: "+r.Failed
	case strings.TrimSpace(r.Output+r.Notes) == "":
		status += ", without output"
	}
	c.Text(1, y, c.Width-1, style, status)
	y += 2
	r.width = c.Width - 2
	lines := r.lines(r.width)
	r.scroll = max(0, min(r.scroll, len(lines)-(end-y)))
	for i := r.scroll; i < len(lines) && y < end; i++ {
		if y == end-1 && i < len(lines)-1 {
			c.Text(1, y, c.Width, dim, "↓ "+plural(float64(len(lines)-i), "more line"))
			return
		}
		at := c.Text(1, y, c.Width, dim, lines[i].lead)
		c.Text(at, y, c.Width, lines[i].style, lines[i].text)
		y++
	}
}
