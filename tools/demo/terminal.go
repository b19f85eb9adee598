package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// style is how a cell looks. Colours are "#rrggbb"; empty: the terminal's.
type style struct {
	fg, bg                        string
	bold, dim, reverse, underline bool
}

type cell struct {
	r rune
	s style
}

// screen is the content of a terminal.
type screen struct {
	columns, lines int
	cells          []cell
	x, y           int
	now            style
}

func newScreen(columns, lines int) *screen {
	return &screen{columns: columns, lines: lines, cells: make([]cell, columns*lines)}
}

func (x *screen) clone() *screen {
	c := *x
	c.cells = slices.Clone(x.cells)
	return &c
}

// String returns the lines.
func (x *screen) String() string {
	var b strings.Builder
	for i, c := range x.cells {
		if i > 0 && i%x.columns == 0 {
			b.WriteByte('\n')
		}
		if c.r == 0 {
			c.r = ' '
		}
		b.WriteRune(c.r)
	}
	return b.String()
}

// write obeys what a program has written, and returns the bytes that are not complete yet.
func (x *screen) write(b []byte) (rest []byte) {
	for len(b) > 0 {
		n := x.one(b)
		if n == 0 {
			return b
		}
		b = b[n:]
	}
	return nil
}

// one obeys one character or sequence, and returns its length; 0: it is not complete.
func (x *screen) one(b []byte) int {
	switch {
	case b[0] == 0x1b && len(b) < 2:
		return 0
	case b[0] == 0x1b && b[1] == '[':
		i := bytes.IndexFunc(b[2:], func(r rune) bool { return r >= '@' && r <= '~' })
		if i < 0 {
			return 0
		}
		x.control(string(b[2:2+i]), b[2+i])
		return 3 + i
	case b[0] == 0x1b && b[1] == ']':
		for i := 2; i < len(b); i++ {
			if b[i] == 7 || b[i] == '\\' && b[i-1] == 0x1b {
				return i + 1
			}
		}
		return 0
	case b[0] == 0x1b && (b[1] == '(' || b[1] == ')'):
		if len(b) < 3 {
			return 0
		}
		return 3
	case b[0] == 0x1b:
		return 2
	case b[0] == '\r':
		x.x = 0
		return 1
	case b[0] == '\n':
		x.y = min(x.y+1, x.lines-1)
		return 1
	case b[0] < ' ':
		return 1
	case !utf8.FullRune(b):
		return 0
	}
	r, n := utf8.DecodeRune(b)
	if x.x < x.columns && x.y < x.lines {
		x.cells[x.y*x.columns+x.x] = cell{r, x.now}
		x.x++
	}
	return n
}

// control obeys a control sequence.
func (x *screen) control(parameters string, final byte) {
	switch final {
	case 'H':
		line, column := 1, 1
		_, _ = fmt.Sscanf(parameters, "%d;%d", &line, &column)
		x.y, x.x = min(max(line, 1), x.lines)-1, min(max(column, 1), x.columns)-1
	case 'J':
		clear(x.cells)
	case 'K':
		clear(x.cells[x.y*x.columns+x.x : (x.y+1)*x.columns])
	case 'm':
		x.attributes(strings.FieldsFunc(parameters, func(r rune) bool { return r == ';' || r == ':' }))
	}
}

// attributes sets the style of the next characters.
func (x *screen) attributes(codes []string) {
	if len(codes) == 0 {
		x.now = style{}
	}
	number := func(i int) int {
		if i >= len(codes) {
			return 0
		}
		n, _ := strconv.Atoi(codes[i])
		return n
	}
	for i := 0; i < len(codes); i++ {
		switch n := number(i); n {
		case 0:
			x.now = style{}
		case 1:
			x.now.bold = true
		case 2:
			x.now.dim = true
		case 4:
			x.now.underline = true
		case 7:
			x.now.reverse = true
		case 39:
			x.now.fg = ""
		case 49:
			x.now.bg = ""
		case 38, 48:
			var color string
			if number(i+1) == 2 {
				color = fmt.Sprintf("#%02x%02x%02x", number(i+2)&255, number(i+3)&255, number(i+4)&255)
				i += 4
			} else {
				color = paletteColor(number(i + 2))
				i += 2
			}
			if n == 38 {
				x.now.fg = color
			} else {
				x.now.bg = color
			}
		}
	}
}

// paletteColor returns a colour of the cube and the greys of a terminal with 256 colours.
func paletteColor(n int) string {
	switch {
	case n >= 232:
		v := 8 + 10*(n-232)
		return fmt.Sprintf("#%02x%02x%02x", v, v, v)
	case n >= 16:
		level := func(k int) int {
			if k == 0 {
				return 0
			}
			return 55 + 40*k
		}
		n -= 16
		return fmt.Sprintf("#%02x%02x%02x", level(n/36), level(n/6%6), level(n%6))
	}
	return []string{
		"#000000", "#d62923", "#2f8d3f", "#b08c14", "#2473cd", "#cf3f93", "#268e97", "#c0c4cc",
		"#777c86", "#d62923", "#2f8d3f", "#b08c14", "#2473cd", "#cf3f93", "#268e97", "#ffffff",
	}[n&15]
}

// terminal runs a program.
type terminal struct {
	master *os.File
	cmd    *exec.Cmd

	mu     sync.Mutex
	screen *screen
	ended  error // of reading; nil while the program runs
}

// start runs a program in a new terminal until ctx ends.
func start(ctx context.Context, columns, lines int, program string, arguments ...string) (*terminal, error) {
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		return nil, err
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = slave.Close() }()
	size := &unix.Winsize{Row: uint16(lines), Col: uint16(columns)} // small constants
	if err := unix.IoctlSetWinsize(int(slave.Fd()), unix.TIOCSWINSZ, size); err != nil {
		return nil, err
	}
	t := &terminal{master: master, screen: newScreen(columns, lines)}
	t.cmd = exec.CommandContext(ctx, program, arguments...)
	t.cmd.Env = append(os.Environ(), "TERM=xterm-256color", "COLORTERM=truecolor", "LC_ALL=C.UTF-8", "NO_COLOR=", "TZ=UTC")
	t.cmd.Stdin, t.cmd.Stdout, t.cmd.Stderr = slave, slave, slave
	t.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := t.cmd.Start(); err != nil {
		return nil, err
	}
	go t.read()
	return t, nil
}

// read draws what the program writes.
func (t *terminal) read() {
	var rest []byte
	buffer := make([]byte, 64<<10)
	for {
		n, err := t.master.Read(buffer)
		t.mu.Lock()
		rest = append([]byte(nil), t.screen.write(append(rest, buffer[:n]...))...)
		if err != nil {
			t.ended = err
		}
		t.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (t *terminal) send(keys string) { _, _ = t.master.WriteString(keys) }

// snapshot returns a copy of the screen.
func (t *terminal) snapshot() *screen {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.screen.clone()
}

// await waits until the screen shows all texts. It calls add with a copy of the screen every so often.
func (t *terminal) await(ctx context.Context, patience time.Duration, texts []string, every time.Duration, add func(*screen)) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	poll := time.NewTicker(100 * time.Millisecond)
	defer poll.Stop()
	added := time.Now()
	for same := 0; same < 3; { // not while the program draws
		x := t.snapshot()
		if x.has(texts) {
			same++
		}
		if every > 0 && time.Since(added) >= every && same == 0 {
			added = time.Now()
			add(x)
		}
		t.mu.Lock()
		ended := t.ended
		t.mu.Unlock()
		if ended != nil {
			return fmt.Errorf("the program has ended:\n%s", x)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the screen does not show %q:\n%s", texts, x)
		case <-poll.C:
		}
	}
	return nil
}

// end ends the program.
func (t *terminal) end() {
	_ = t.cmd.Process.Kill()
	_ = t.cmd.Wait()
	_ = t.master.Close()
}
