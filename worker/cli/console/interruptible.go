package console

import (
	"context"
	"io"
	"time"
)

// interruptible is a reader that an interrupt ends. A pipe or a terminal may be silent for ever.
type interruptible struct {
	ctx   context.Context //nolint:containedctx // a Reader has no other way
	r     io.Reader
	buf   []byte
	rest  []byte // read and not returned yet
	err   error  // of the last read
	reads chan readResult
}

type readResult struct {
	n   int
	err error
}

// NewInterruptible returns a reader of r, whose error is ctx's after the end of ctx.
func NewInterruptible(ctx context.Context, r io.Reader) io.Reader {
	const size = 64 << 10
	return &interruptible{ctx: ctx, r: r, buf: make([]byte, size), reads: make(chan readResult, 1)}
}

func (i *interruptible) Read(p []byte) (int, error) {
	if len(i.rest) == 0 {
		if err := i.ctx.Err(); err != nil {
			return 0, err
		}
		if i.err != nil {
			return 0, i.err
		}
		go func() { // it ends with the program if nothing comes
			n, err := i.r.Read(i.buf)
			i.reads <- readResult{n, err}
		}()
		select {
		case <-i.ctx.Done():
			return 0, i.ctx.Err()
		case result := <-i.reads:
			i.rest, i.err = i.buf[:result.n], result.err
		}
	}
	n := copy(p, i.rest)
	i.rest = i.rest[n:]
	if n == 0 {
		return 0, i.err
	}
	return n, nil
}

// UntilInterrupt does work that reads foreign files. After an interrupt the work has some time left. Then
// UntilInterrupt returns the interrupt, although the work is not at its end: the program ends then.
func UntilInterrupt(ctx context.Context, left time.Duration, work func() error) error {
	done := make(chan error, 1)
	go func() { done <- work() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-done:
		return err
	case <-time.After(left):
		return ctx.Err()
	}
}
