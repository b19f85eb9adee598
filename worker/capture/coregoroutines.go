package capture

import (
	"context"
	"fmt"

	"pg_stat_backtrace/ptrace/snapshot"
	"pg_stat_backtrace/unwind/corefile"
	"pg_stat_backtrace/worker/naming"
	"pg_stat_backtrace/worker/naming/backtrace"
	"pg_stat_backtrace/worker/naming/symbolize"
)

// maxGoStructure is the largest size, in bytes, of the blocks that are copied from a core file. Larger blocks are
// stacks, which the walk reads from the core.
const maxGoStructure = 1 << 10

// goroutines appends the goroutines of the core's Go programs. All memory of a core is from the same moment, so one
// read of the goroutines is enough.
func (r *reader) goroutines(t *backtrace.Trace, sp *naming.Space, mem *corefile.Memory) error {
	sp.Memory = coreBytes(mem)
	programs, err := naming.GoPrograms(context.Background(), sp)
	if err != nil {
		return err
	}
	var p naming.GoPlan
	for i := range programs {
		if err := p.Add(sp, &programs[i]); err != nil {
			return err
		}
	}
	blocks := make([]snapshot.Stack, len(p.Blocks))
	for i, b := range p.Blocks {
		blocks[i].Start = b.Address
		if data := make([]byte, min(max(b.Length, 0), maxGoStructure)); len(data) == b.Length && mem.Bytes(b.Address, data) {
			blocks[i].Data = data
		}
	}
	threads := make(map[int]naming.GoThread, len(r.core.Threads))
	for i := range r.core.Threads {
		th := &r.core.Threads[i]
		threads[th.TID] = naming.GoThread{TID: th.TID, Registers: th.Registers}
	}
	w := naming.GoWalk{
		Arch: r.core.Arch, Space: sp, Modules: space{Space: sp, mem: mem}, Blocks: blocks, Threads: threads,
		MaxFrames: r.options.MaxFrames, Copies: &naming.GoCopies{Core: mem},
		Keep: func(th *backtrace.Thread) bool {
			err := r.memory.Charge(stackBytes(th), "the stacks")
			if err != nil && r.leftOut == 0 {
				r.refused = append(r.refused, fmt.Errorf("goroutines are left out: %w", err))
			}
			if err != nil {
				r.leftOut++
			}
			return err == nil
		},
	}
	w.All(t, programs, &p)
	return nil
}

// coreBytes returns a reader of the core's memory and of the files that it maps. The reader returns
// corefile.ErrNoMemory at the first missing page.
func coreBytes(mem *corefile.Memory) symbolize.MemoryReader {
	const page = 4096
	return func(addr uint64, p []byte) (int, error) {
		for n := 0; n < len(p); {
			at := addr + uint64(n)
			part := p[n:min(len(p), n+int(page-at%page))]
			if !mem.Bytes(at, part) {
				return n, corefile.ErrNoMemory
			}
			n += len(part)
		}
		return len(p), nil
	}
}
