package view

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/gdamore/tcell/v2"
)

// Terminal is the terminal in which this program runs. It shows the alternate screen until Close.
type Terminal struct {
	screen tcell.Screen
	colors int // 0: none
	ascii  bool
	styles map[Style]tcell.Style
}

// Numbers of colours of a terminal.
const (
	manyColors = 256
	someColors = 8
	allColors  = 16
)

// OpenTerminal switches the terminal to the alternate screen and raw mode. The caller must call Close, also after a panic.
func OpenTerminal() (*Terminal, error) {
	screen, err := tcell.NewScreen()
	if err != nil {
		return nil, fmt.Errorf("the terminal cannot be used (TERM=%q): %w; --batch prints plain text", os.Getenv("TERM"), err)
	}
	if err := screen.Init(); err != nil {
		return nil, fmt.Errorf("the terminal cannot be used: %w; --batch prints plain text", err)
	}
	t := &Terminal{screen: screen, colors: screen.Colors(), styles: map[Style]tcell.Style{}}
	t.ascii = !strings.EqualFold(screen.CharacterSet(), "UTF-8")
	if os.Getenv("NO_COLOR") != "" || t.colors < someColors {
		t.colors = 0
	}
	return t, nil
}

// IsASCII reports whether the locale in the environment variables is not a UTF-8 locale.
func IsASCII() bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if v := os.Getenv(name); v != "" {
			v = strings.ToUpper(v)
			return !strings.Contains(v, "UTF-8") && !strings.Contains(v, "UTF8")
		}
	}
	return true
}

// SetMouse switches the mouse on or off, and returns a message. While it is on, the user cannot select text with the mouse in
// the terminal, so it is off at the start.
func (t *Terminal) SetMouse(on bool) string {
	if !on {
		t.screen.DisableMouse()
		return "The mouse is off: the terminal selects text again."
	}
	t.screen.EnableMouse(tcell.MouseButtonEvents)
	return "The mouse is on: click, double click, wheel. m switches it off. Many terminals select text with Shift."
}

// Close restores the terminal.
func (t *Terminal) Close() { t.screen.Fini() }

// Suspend restores the terminal while f runs.
func (t *Terminal) Suspend(f func()) error {
	if err := t.screen.Suspend(); err != nil {
		return err
	}
	f()
	return t.screen.Resume()
}

// Grid returns an empty grid of the terminal's size.
func (t *Terminal) Grid() *Grid {
	g := NewGrid(t.screen.Size())
	g.ASCII, g.Mono = t.ascii, t.colors == 0
	return g
}

// Draw shows a grid. It sends only the cells that have changed since the last call or, if whole is set, all cells.
func (t *Terminal) Draw(g *Grid, whole bool) {
	for y := range g.Height {
		for x := range g.Width {
			if c := &g.cells[y*g.Width+x]; c.Rune != 0 {
				t.screen.SetContent(x, y, c.Rune, nil, t.style(c.Style))
			}
		}
	}
	if whole {
		t.screen.Sync()
	} else {
		t.screen.Show()
	}
}

func (t *Terminal) style(s Style) tcell.Style {
	if x, ok := t.styles[s]; ok {
		return x
	}
	x := tcell.StyleDefault.Bold(s.Bold).Dim(s.Dim).Reverse(s.Reverse).Underline(s.Underline)
	if t.colors > 0 {
		if s.Fg != Plain {
			x = x.Foreground(t.color(s.Fg))
		}
		if s.Bg != Plain {
			x = x.Background(t.color(s.Bg))
		}
	}
	t.styles[s] = x
	return x
}

// color returns a colour that has a contrast of at least 3 to 1 to black and to white, if the terminal has many colours.
func (t *Terminal) color(i Ink) tcell.Color {
	rgb := map[Ink]int32{
		Green: 0x2f8d3f, Blue: 0x2473cd, Pink: 0xcf3f93, Red: 0xd62923, Teal: 0x268e97, Purple: 0x8b51bd, Orange: 0xcb6e1d,
		Gold: 0xb08c14, Brown: 0x8e5d44, Orchid: 0xba5eba, Gray: 0x777c86,
	}[i]
	if t.colors >= manyColors {
		return tcell.NewHexColor(rgb)
	}
	few := map[Ink]int{
		Green: 2, Blue: 4, Pink: 5, Red: 1, Teal: 6, Purple: 5, Orange: 3, Gold: 3, Brown: 3, Orchid: 5, Gray: 6,
	}[i]
	more := map[Ink]int{Purple: 13, Gold: 11, Brown: 9, Orchid: 13, Gray: 8}
	if n, ok := more[i]; ok && t.colors >= allColors {
		few = n
	}
	return tcell.PaletteColor(few)
}

// Copy sends a request to the terminal to put a text on the clipboard (OSC 52). Not every terminal supports this.
func (t *Terminal) Copy(text string) { t.screen.SetClipboard([]byte(text)) }

// Event is a key that the user pressed, or a change of the terminal's size (Size is set).
type Event struct {
	// Key is a character, or the name of a key: "up", "down", "left", "right", "pgup", "pgdn", "home", "end", "enter",
	// "backspace", "esc", "tab", "backtab", "delete", "f1", "ctrl-c", "ctrl-z", "ctrl-l". It is empty for a new size.
	Key  string
	Size bool
	// Mouse is set for an event of the mouse. Then Key is Click, WheelUp or WheelDown, and Y the line.
	Mouse bool
	Y     int
}

// Events sends the events until quit is closed, and then closes the channel.
func (t *Terminal) Events(quit <-chan struct{}) <-chan Event {
	raw, out := make(chan tcell.Event, 16), make(chan Event, 16)
	pressed := false // the terminal also reports movements with the button pressed
	go t.screen.ChannelEvents(raw, quit)
	go func() {
		defer close(out)
		for e := range raw {
			x, ok := eventOf(e)
			if m, isMouse := e.(*tcell.EventMouse); isMouse {
				x, ok = mouseEvent(m, pressed)
				pressed = m.Buttons()&tcell.ButtonPrimary != 0
			}
			if !ok {
				continue
			}
			select {
			case out <- x:
			case <-quit:
			}
		}
	}()
	return out
}

// mouseEvent returns the event of the mouse; false: the screen does not use the event. pressed is set if the button was down
// at the event before.
func mouseEvent(e *tcell.EventMouse, pressed bool) (Event, bool) {
	_, y := e.Position()
	switch b := e.Buttons(); {
	case b&tcell.WheelUp != 0:
		return Event{Key: WheelUp, Mouse: true, Y: y}, true
	case b&tcell.WheelDown != 0:
		return Event{Key: WheelDown, Mouse: true, Y: y}, true
	case b&tcell.ButtonPrimary != 0 && !pressed:
		return Event{Key: Click, Mouse: true, Y: y}, true
	}
	return Event{}, false
}

func eventOf(e tcell.Event) (Event, bool) {
	switch e := e.(type) {
	case *tcell.EventResize:
		return Event{Size: true}, true
	case *tcell.EventKey:
		if e.Key() == tcell.KeyRune {
			if e.Modifiers()&(tcell.ModAlt|tcell.ModCtrl|tcell.ModMeta) != 0 {
				return Event{}, false
			}
			return Event{Key: string(e.Rune())}, true
		}
		name := map[tcell.Key]string{
			tcell.KeyUp: "up", tcell.KeyDown: "down", tcell.KeyLeft: "left", tcell.KeyRight: "right", tcell.KeyPgUp: "pgup",
			tcell.KeyPgDn: "pgdn", tcell.KeyHome: "home", tcell.KeyEnd: "end", tcell.KeyEnter: "enter",
			tcell.KeyBackspace: "backspace", tcell.KeyBackspace2: "backspace", tcell.KeyEscape: "esc", tcell.KeyTab: "tab",
			tcell.KeyBacktab: "backtab", tcell.KeyDelete: "delete", tcell.KeyF1: "f1", tcell.KeyCtrlC: "ctrl-c",
			tcell.KeyCtrlZ: "ctrl-z", tcell.KeyCtrlL: "ctrl-l",
		}[e.Key()]
		return Event{Key: name}, name != ""
	}
	return Event{}, false
}

// ErrNoTerminal means that standard output or input is not a terminal.
var ErrNoTerminal = errors.New("top needs a terminal: give --batch for plain text, or --format json")
