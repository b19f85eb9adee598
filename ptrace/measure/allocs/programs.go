package allocs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"

	"pg_stat_backtrace/ptrace/bpf"
)

// ErrUnsupported means that the kernel, the architecture, or the process's allocator does not allow a trace.
var ErrUnsupported = errors.New("allocations cannot be traced here")

// Limits. They have the same values in allocs.bpf.c.
const (
	MaxStack  = 128 << 10 // bytes of a stack that are copied
	MaxRanges = 128       // ranges of code of a process
)

// Kind is the kind of a function: it allocates, frees or both (enum kind).
type Kind uint32

// The kinds. Beside each are the first arguments of its functions; "old" is the address of an existing block.
const (
	Malloc        Kind = iota + 1 // (size)
	Calloc                        // (count, size)
	Realloc                       // (old, size)
	Memalign                      // (alignment, size)
	PosixMemalign                 // (result, alignment, size)
	Mmap                          // (address, size)
	Mremap                        // (old, old size, size)
	Free                          // (old)
	Munmap                        // (old, size)
	numKinds
)

// Returns reports whether the functions of kind k return the address of a new allocation, which is to be recorded.
func (k Kind) Returns() bool { return k != Free && k != Munmap }

// config has the settings of the BPF programs.
type config struct {
	// StackEnd is the address of the first byte above the main thread's frames.
	StackEnd uint64
	// LibraryStart and LibrarySize are the code of the C library. Its own calls of mmap and munmap are not counted.
	// If LibrarySize is 0, all calls are counted.
	LibraryStart, LibrarySize uint64
	// HasHeaders means that the word before each block is glibc's header, which has the block's size.
	HasHeaders bool
	// MaxBlocks and MaxPaths are the largest numbers of live blocks and call paths that the BPF maps keep.
	MaxBlocks, MaxPaths int
}

// Range is a range of addresses; End is exclusive.
type Range struct{ Start, End uint64 }

// Sums are the figures of one call path (struct alloc_sums). Sizes are in bytes, as the process asked for them.
type Sums struct {
	Objects, Bytes         uint64 // allocated
	LiveObjects, LiveBytes uint64 // allocated and not freed yet
	Sent                   uint64
}

// Counters are the counts of all calls (struct alloc_counters).
type Counters struct {
	Hits                      [numKinds]uint64 // calls, by Kind
	Failed                    uint64           // allocations without a result
	Nested                    uint64           // calls from inside an allocation function
	Older, OlderBytes         uint64           // freed blocks that were allocated before the trace; sizes from glibc's headers
	UnknownMaps, UnknownBytes uint64           // unmapped ranges that do not begin with a known mapping
	Shared, SharedBytes       uint64           // shared mappings, which are not counted as allocations
	Untracked, UntrackedBytes uint64           // allocations that are missing among the live blocks, because their map was full
	Replaced, ReplacedBytes   uint64           // blocks whose release was not seen: a later allocation has the same address
	LostCalls, Unmatched      uint64           // calls lost when too many threads called, and calls that did not return
	LostStacks                uint64           // stacks for which the ring had no room; a later call sends them
	NoStack, OtherStacks      uint64           // allocations without a stack, and without room for their call path
	Hashed, Words             uint64           // stacks copied, and their words
	Runs, Time                uint64           // runs of the BPF programs, and their time in ns, measured for one run in 16
}

// Calls is the number of counted calls of all functions.
func (c *Counters) Calls() (n uint64) {
	for _, hits := range c.Hits {
		n += hits
	}
	return n
}

// Registers has the registers that an unwinder needs, as they were at the call.
type Registers struct{ IP, SP, BP, BX, R12, R13, R14, R15 uint64 }

// stackHead is struct alloc_stack.
type stackHead struct {
	Number      uint64
	CodePages   uint64
	Registers   Registers
	TID, Length uint32
	Cut, _      uint32
}

// copiedStack is the copy of a stack at the first call with this call path.
type copiedStack struct {
	// Number identifies the call path, as in Sums.
	Number uint64
	// CodePages is the number of pages with code that the process had at the call.
	CodePages uint64
	Registers Registers
	TID       int
	// Cut means that Data, which begins at the stack pointer, ends before the end of the stack.
	Cut  bool
	Data []byte
}

// programs has the loaded BPF programs, and their maps.
type programs struct {
	*ebpf.Collection

	uprobes bpf.Uprobes
	links   []link.Link
	ring    *ringbuf.Reader
	record  ringbuf.Record
}

// loader loads the programs.
func loader() *bpf.Loader {
	return &bpf.Loader{Read: loadAllocs, Unsupported: ErrUnsupported, Release: "6.6"}
}

// loadPrograms loads the programs. The error is ErrUnsupported, or says which privilege is missing (fs.ErrPermission).
func loadPrograms(c config) (*programs, error) {
	spec, err := loader().Spec(map[string]any{
		"stack_end": c.StackEnd, "library_start": c.LibraryStart, "library_size": c.LibrarySize, "has_headers": c.HasHeaders,
	})
	if err != nil {
		return nil, err
	}
	spec.Maps["blocks"].MaxEntries = uint32(c.MaxBlocks)
	spec.Maps["sums"].MaxEntries = uint32(c.MaxPaths) + 1
	for _, name := range []string{"entered", "returned"} {
		spec.Programs[name].AttachType = ebpf.AttachTraceUprobeMulti
	}
	loaded, err := loader().Load(spec, "entered", "returned", "exited")
	if err != nil {
		return nil, err
	}
	t := &programs{Collection: loaded}
	if t.ring, err = ringbuf.NewReader(loaded.Maps["stacks"]); err != nil {
		t.Close()
		return nil, loader().Error("open a ring", err)
	}
	// Call path 0 has the allocations without a call path of their own. Sent is set, so that no stack is sent for it.
	if err := loaded.Maps["sums"].Put(uint64(0), Sums{Sent: 1}); err != nil {
		t.Close()
		return nil, loader().Error("fill a table", err)
	}
	return t, nil
}

// Check returns why allocations cannot be traced here; nil if they can.
func Check() error {
	t, err := loadPrograms(config{MaxBlocks: 1, MaxPaths: 1})
	if err != nil {
		return err
	}
	t.Close()
	return nil
}

// Attach attaches the BPF programs to functions of the file at path, for the process pid. From the return of Attach on,
// the calls are counted. The error is ErrUnsupported if the kernel would not count the calls of all threads.
func (t *programs) Attach(path string, pid int, functions []Function) error {
	file, err := link.OpenExecutable(path)
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	t.uprobes, err = bpf.FindUprobes(t.Programs["entered"].FD(), uint32(ebpf.AttachTraceUprobeMulti))
	if err != nil {
		return loader().Error("attach to functions", err)
	}
	if err := t.CheckThreads(pid); err != nil {
		return err
	}
	var entries, returns link.UprobeMultiOptions
	for _, f := range functions {
		entries.Addresses = append(entries.Addresses, f.Offset)
		entries.Cookies = append(entries.Cookies, uint64(f.Kind))
		if f.Kind.Returns() {
			returns.Addresses = append(returns.Addresses, f.Offset)
		}
	}
	entries.PID, returns.PID = uint32(pid), uint32(pid)
	l, err := link.AttachTracing(link.TracingOptions{Program: t.Programs["exited"]})
	if err != nil {
		return attachError(err)
	}
	t.links = append(t.links, l)
	l, err = file.UprobeMulti(nil, t.Programs["entered"], &entries)
	if err != nil {
		return attachError(err)
	}
	t.links = append(t.links, l)
	if l, err = file.UretprobeMulti(nil, t.Programs["returned"], &returns); err != nil {
		return attachError(err)
	}
	t.links = append(t.links, l)
	return t.activate(1)
}

// CheckThreads returns an error, ErrUnsupported, if the kernel does not count the calls of all threads of the attached
// process.
func (t *programs) CheckThreads(pid int) error {
	if err := t.uprobes.CheckThreads(pid); err != nil {
		return fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	return nil
}

// activate switches the counting of calls on (1) or off (0).
func (t *programs) activate(on uint32) error {
	if err := t.Maps["active"].Put(uint32(0), on); err != nil {
		return loader().Error("fill a table", err)
	}
	return nil
}

func attachError(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return err // the process has ended
	}
	return loader().Error("attach to functions", err)
}

// Detach detaches the BPF programs. From the beginning of Detach on, calls are not counted, and the figures stay as
// they are.
func (t *programs) Detach() {
	if len(t.links) > 0 {
		_ = t.activate(0) // it cannot fail: the map exists, and has the element
	}
	for _, l := range t.links {
		_ = l.Close()
	}
	t.links = nil
}

// SetCode passes the addresses of the process's code to the BPF programs. The programs use them as long as the process has
// the given number of pages with code. Ranges are in address order, at most MaxRanges. Without valid ranges, the programs
// treat every word of a stack that can be a pointer as an address in code.
func (t *programs) SetCode(ranges []Range, pages uint64) error {
	var c struct {
		Ranges    [MaxRanges]Range
		Libraries Range
		Pages     uint64
	}
	if len(ranges) > MaxRanges {
		return fmt.Errorf("%w: %d ranges of code", ErrUnsupported, len(ranges))
	}
	if err := t.Maps["code"].Put(uint32(0), &c); err != nil { // c is zero: no program may see a mixture of old and new ranges
		return loader().Error("fill a table", err)
	}
	c.Pages = pages
	copy(c.Ranges[:], ranges)
	if last := len(ranges) - 1; last > 0 {
		c.Libraries = Range{ranges[1].Start, ranges[last].End}
	}
	for i := len(ranges); i < MaxRanges; i++ {
		c.Ranges[i] = Range{math.MaxUint64, math.MaxUint64}
	}
	if err := t.Maps["code"].Put(uint32(0), &c); err != nil {
		return loader().Error("fill a table", err)
	}
	return nil
}

// Stack waits for the next stack; false at the deadline, after Close, or for an invalid record. The data of the stack is
// valid until the next call.
func (t *programs) Stack(deadline time.Time) (copiedStack, bool) {
	t.ring.SetDeadline(deadline)
	if t.ring.ReadInto(&t.record) != nil {
		return copiedStack{}, false
	}
	var h stackHead
	n, err := binary.Decode(t.record.RawSample, binary.NativeEndian, &h)
	if err != nil || uint64(h.Length) > uint64(len(t.record.RawSample)-n) {
		return copiedStack{}, false
	}
	return copiedStack{
		Number: h.Number, CodePages: h.CodePages, Registers: h.Registers, TID: int(h.TID), Cut: h.Cut != 0,
		Data: t.record.RawSample[n:][:h.Length],
	}, true
}

// Counters reads the counts.
func (t *programs) Counters() (c Counters, err error) {
	if err := t.Maps["counters"].Lookup(uint32(0), &c); err != nil {
		return c, fmt.Errorf("read the counts of allocations: %w", err)
	}
	return c, nil
}

// Sums reads the figures of each call path, by its number. Call path 0 has all allocations without a path of their own.
func (t *programs) Sums() (map[uint64]Sums, error) {
	all := make(map[uint64]Sums)
	var (
		number uint64
		s      Sums
	)
	entries := t.Maps["sums"].Iterate()
	for entries.Next(&number, &s) {
		if s.Objects > 0 || s.LiveObjects > 0 {
			all[number] = s
		}
	}
	if err := entries.Err(); err != nil {
		return nil, fmt.Errorf("read the sums of allocations: %w", err)
	}
	return all, nil
}

// Block is a block or mapping that is in use (struct alloc_block).
type Block struct {
	Size uint64
	Path uint64 // number of the call path
}

// Blocks reads the blocks that were allocated during the trace and not freed. Call it after Detach, because the blocks change
// while calls are counted.
func (t *programs) Blocks() ([]Block, error) {
	var (
		address uint64
		b       Block
		all     []Block
	)
	entries := t.Maps["blocks"].Iterate()
	for entries.Next(&address, &b) {
		all = append(all, b)
	}
	if err := entries.Err(); err != nil {
		return nil, fmt.Errorf("read the live blocks: %w", err)
	}
	return all, nil
}

// Close detaches the programs and frees everything. The kernel does so itself when this process ends.
func (t *programs) Close() {
	t.Detach()
	if t.ring != nil {
		_ = t.ring.Close()
	}
	if t.Collection != nil {
		t.Collection.Close()
	}
	*t = programs{}
}
