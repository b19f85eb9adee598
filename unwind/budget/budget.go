// Package budget bounds the memory and the output of readers of foreign files, in proportion to the input. A small file
// can describe a large result: compressed repetition, counts without data, names and stacks that many records share. So
// a reader credits the bytes of its input to a Budget, charges the Budget before it allocates or writes, and stops if
// the Budget is exceeded. All factors are in this package; doc/internals/defences.md states them. The package must not
// know any file format.
package budget

import (
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// A Rate is the limit for the reader of a file: Base bytes, plus Factor bytes for each byte of the input, but not more
// than Most bytes.
type Rate struct {
	Base, Factor, Most int64
}

// The rates of all readers of foreign files.
var (
	// Memory limits the memory in which a command keeps data from its input. The garbage collector may need the same
	// amount again.
	Memory = Rate{Base: 128 << 20, Factor: 256, Most: 2 << 30}
	// Stacks limits the memory for the stacks of a core file. Many stacks may lie in the same bytes of the file.
	Stacks = Rate{Base: 64 << 20, Factor: 16, Most: 1 << 30}
	// Image is an upper bound for the memory of all readers of an ELF file together: the sum of the rates below and of
	// the other limits of these readers. No reader charges it; only tests compare memory with it.
	Image = Rate{Base: 64 << 20, Factor: 64, Most: 2 << 30}
	// Output limits the bytes that a command prints.
	Output = Rate{Base: 16 << 20, Factor: 256, Most: math.MaxInt64}
	// Expansion limits the content of one compressed part of a file, such as a section. The input is the compressed
	// part.
	Expansion = Rate{Base: 1 << 20, Factor: 64, Most: 256 << 20}
	// Names limits the bytes of all names of one symbol table. Many names may overlap in the file. The input is the
	// file.
	Names = Rate{Base: 1 << 20, Factor: 16, Most: 128 << 20}
	// Spool limits the temporary file with the content of a compressed core. Zeros take no space in this file.
	Spool = Rate{Base: 256 << 20, Factor: 256, Most: math.MaxInt64}
	// Window limits the window of a zstd stream, which the decoder allocates. A stream of `zstd --long=27` needs Most.
	Window = Rate{Base: 8 << 20, Factor: 256, Most: 128 << 20}
	// Work limits the processor time of a reader, in decoded bytes. Bytes that are decoded again count again. A reader
	// decodes some 100 MB a second. The input is the expanded content. Among 300 real files, a file of libc6-dbg used
	// the largest share of its limit: 11 %, for 4,000 addresses all over its code (TestShareOfEffort in unwind/dwarf).
	Work = Rate{Base: 256 << 20, Factor: 16, Most: 8 << 30}
)

// WorkPerSecond is the number of decoded bytes by which the used bytes of an Effort decrease each second. A reader may
// live for months and decode a part again after its cache has removed it. With this rate, a hostile file takes only a
// small part of one processor.
const WorkPerSecond = 8 << 20

// Of returns the limit in bytes for an input of the given number of bytes.
func (r Rate) Of(input int64) int64 {
	if input > (r.Most-r.Base)/r.Factor {
		return r.Most
	}
	return r.Base + r.Factor*max(input, 0)
}

// ErrExceeded is the error of a reader whose input would need more than its limit. The wrapping error's text has the
// limit.
var ErrExceeded = errors.New("out of proportion to the input")

// A Budget is the limit of one reader, and the number of bytes that the reader has used. A nil Budget has no limit. A
// Budget is safe for concurrent use.
type Budget struct {
	rate        Rate
	noun        string
	input, used atomic.Int64
}

// New returns a Budget without an input. The noun names the limited resource, such as "memory", in the text of errors.
func New(rate Rate, noun string) *Budget { return &Budget{rate: rate, noun: noun} }

// Credit adds n bytes to the input, which raises the limit.
func (b *Budget) Credit(n int64) {
	if b != nil && n > 0 {
		b.input.Add(n)
	}
}

// Input returns the number of bytes that were credited.
func (b *Budget) Input() int64 { return b.input.Load() }

// Used returns the number of bytes that were charged.
func (b *Budget) Used() int64 {
	if b == nil {
		return 0
	}
	return b.used.Load()
}

// Charge adds n bytes to the used bytes. The reason completes "would need more than ..." in the error's text, such as
// "samples". The error wraps ErrExceeded and has the limit and the reason. If there is an error, the n bytes are not
// added.
func (b *Budget) Charge(n int64, reason string) error {
	if b == nil {
		return nil
	}
	n = max(n, 0)
	if used := b.used.Add(n); used < 0 || used > b.rate.Of(b.input.Load()) {
		b.used.Add(-n)
		return b.exceeded(reason)
	}
	return nil
}

// exceeded returns the error for a reason, with the limit.
func (b *Budget) exceeded(reason string) error {
	input := b.input.Load()
	limit := b.rate.Of(input)
	if limit == b.rate.Most {
		return fmt.Errorf("%w: %s would need more than %s of %s", ErrExceeded, reason, size(limit), b.noun)
	}
	return fmt.Errorf("%w: %s would need more than %s of %s: the limit is %s and %d times the %d bytes of the input",
		ErrExceeded, reason, size(limit), b.noun, size(b.rate.Base), b.rate.Factor, input)
}

// size prints a number of bytes, rounded down.
func size(n int64) string {
	if n < 1<<20 {
		return fmt.Sprintf("%d bytes", n)
	}
	return fmt.Sprintf("%d MB", n>>20)
}

// An Effort bounds the processor time of the readers of one file, in decoded bytes. A nil Effort has no limit. An
// Effort is safe for concurrent use.
type Effort struct {
	*Budget

	mu   sync.Mutex
	last time.Time
	now  func() time.Time
}

// NewEffort returns an Effort without an input.
func NewEffort() *Effort { return newEffort(time.Now) }

func newEffort(now func() time.Time) *Effort {
	return &Effort{Budget: New(Work, "decoded data"), last: now(), now: now}
}

// Credit adds n bytes to the input, which raises the limit.
func (e *Effort) Credit(n int64) {
	if e != nil {
		e.Budget.Credit(n)
	}
}

// Charge adds n decoded bytes to the used bytes, like Budget.Charge. Before that, it subtracts the bytes that the
// Effort has regained since the last call (WorkPerSecond).
func (e *Effort) Charge(n int64, reason string) error {
	if e == nil {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	now := e.now()
	const most = 3600 // seconds; avoids an overflow of the product
	if regained := int64(min(now.Sub(e.last).Seconds(), most) * WorkPerSecond); regained > 0 {
		e.used.Store(max(0, e.used.Load()-regained))
		e.last = now
	}
	return e.Budget.Charge(n, reason)
}

// Reader returns a reader that credits the bytes of r to all of the budgets.
func Reader(r io.Reader, budgets ...*Budget) io.Reader { return &reader{r, budgets} }

type reader struct {
	r       io.Reader
	budgets []*Budget
}

func (r *reader) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	for _, b := range r.budgets {
		b.Credit(int64(n))
	}
	return n, err
}

// Writer returns a writer that charges the bytes to the Budget before it writes them to w. A write that exceeds the
// limit writes nothing.
func (b *Budget) Writer(w io.Writer) io.Writer { return &writer{w, b} }

type writer struct {
	w io.Writer
	b *Budget
}

func (w *writer) Write(p []byte) (int, error) {
	if err := w.b.Charge(int64(len(p)), "the result"); err != nil {
		return 0, err
	}
	return w.w.Write(p)
}
