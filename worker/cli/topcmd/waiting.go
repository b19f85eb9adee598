package topcmd

import (
	"bytes"
	"context"
	"errors"
	"io"
	"time"

	"pg_stat_backtrace/worker/cli/console"
	"pg_stat_backtrace/worker/host"
	"pg_stat_backtrace/worker/screen/view"
)

// errQuit means that the user has ended the program before it had data.
var errQuit = errors.New("the user has ended the program")

// waitFor runs work. If the command shows the screen, and work takes longer than patience, the terminal meanwhile shows the text
// doing, such as "looking for servers". The messages of work are written to stderr after its end, as the terminal shows something
// else before. After the key q, waitFor returns errQuit at once, and does not wait for the end of work.
func (f *topFlags) waitFor(ctx context.Context, stderr io.Writer, doing string, work func(stderr io.Writer) error) error {
	if f.isBatch() {
		_, err := console.Await(ctx, func() (struct{}, error) { return struct{}{}, work(stderr) })
		return err
	}
	const patience, tick = 100 * time.Millisecond, 500 * time.Millisecond
	began := time.Now()
	var messages bytes.Buffer
	done := make(chan error, 1)
	go func() { done <- host.Catch("start", func() error { return work(&messages) }) }()
	finish := func(err error) error {
		_, _ = messages.WriteTo(stderr)
		return err
	}
	select {
	case err := <-done:
		return finish(err)
	case <-time.After(patience):
	}
	terminal, err := view.OpenTerminal()
	if err != nil {
		return err
	}
	closed := false
	end := func() {
		if !closed {
			closed = true
			terminal.Close()
		}
	}
	defer end()
	quit := make(chan struct{})
	defer close(quit)
	events := terminal.Events(quit)
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		g := terminal.Grid()
		view.DrawWaiting(g, doing, time.Since(began))
		terminal.Draw(g, false)
		select {
		case <-ctx.Done():
			return errQuit
		case err := <-done:
			end() // the messages belong to the screen of the shell
			return finish(err)
		case <-ticker.C:
		case e, ok := <-events:
			if !ok || e.Key == "q" || e.Key == "ctrl-c" {
				return errQuit
			}
		}
	}
}
