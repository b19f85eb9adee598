package cli

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/worker/cli/console"
)

// TestInterruptible expects all bytes and the error of the reader below.
func TestInterruptible(t *testing.T) {
	t.Parallel()
	text := strings.Repeat("some bytes\n", 20000)
	if err := iotest.TestReader(console.NewInterruptible(t.Context(), strings.NewReader(text)), []byte(text)); err != nil {
		t.Error(err)
	}
	broken := io.MultiReader(strings.NewReader("some"), iotest.ErrReader(io.ErrClosedPipe))
	if got, err := io.ReadAll(console.NewInterruptible(t.Context(), broken)); string(got) != "some" ||
		!errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("%q, %v", got, err)
	}
}

// TestSilentInput interrupts commands that read a pipe from which nothing comes.
func TestSilentInput(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"decode"}, {"report", "-"}} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		root := newRoot("test")
		root.SetArgs(args)
		root.SetIn(r)
		root.SetOut(new(bytes.Buffer))
		root.SetErr(new(bytes.Buffer))
		ended := make(chan error, 1)
		go func() { ended <- root.ExecuteContext(ctx) }()
		time.AfterFunc(100*time.Millisecond, cancel)
		select {
		case err := <-ended:
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%v: %v", args, err)
			}
		case <-time.After(pgtest.Patience):
			t.Errorf("%v: an interrupt does not end it", args)
		}
		_ = w.Close()
		_ = r.Close()
	}
}

// TestInterruptAtStart interrupts commands before they have printed anything, and expects that they end with an error, without waiting
// for their first data.
func TestInterruptAtStart(t *testing.T) {
	t.Parallel()
	server := pgtest.Lend(t, pgtest.BinDir(t), pgtest.Options{})
	for _, args := range [][]string{
		{"top", "--batch", "-D", server.DataDir, "--interval", "1m"},
		{"top", "--format", "json", "-D", server.DataDir, "--interval", "1m"},
		{"waits", "-m", "sampled", "-D", server.DataDir},
		{"trace", "-D", server.DataDir, "pg_sleep"},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		root := newRoot("test")
		root.SetArgs(args)
		out := new(bytes.Buffer)
		root.SetOut(out)
		root.SetErr(new(bytes.Buffer))
		ended := make(chan error, 1)
		go func() { ended <- root.ExecuteContext(ctx) }()
		select {
		case err := <-ended:
			if !errors.Is(err, context.Canceled) || out.Len() > 0 {
				t.Errorf("%v: %v, %s", args, err, out)
			}
		case <-time.After(pgtest.Patience):
			t.Errorf("%v: an interrupt does not end it", args)
		}
	}
}
