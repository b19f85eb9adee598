package console

import (
	"context"
	"io"
	"time"
)

// interruptible is a reader whose Read returns at the end of ctx, even if a read from a pipe or a terminal blocks for ever.
type interruptible struct {
	ctx   context.Context //nolint:containedctx // a Reader has no other way
	r     io.Reader
	buf   []byte
	rest  []byte // bytes that were read and not returned yet
	err   error  // error of the last read
	reads chan readResult
}

type readResult struct {
	n   int
	err error
}

// NewInterruptible returns a reader of r. After the end of ctx, its Read returns the error of ctx. One call of r.Read may then
// still be running.
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
		go func() { // the goroutine may block until the end of this program
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

// UntilInterrupt calls work, which may block in reads of other users' files, and returns its error. After the end of ctx,
// UntilInterrupt waits for work for the time left. After that, it returns the error of ctx although work still runs. The
// caller should end the program.
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

// Await returns the results of work, or the error of ctx as soon as ctx ends, although work still runs. The caller should then end
// the program, which also releases what work has opened.
func Await[T any](ctx context.Context, work func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		value, err := work()
		done <- result{value, err}
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}
