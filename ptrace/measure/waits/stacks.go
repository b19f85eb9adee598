package waits

import (
	"pg_stat_backtrace/ptrace/observe"
	"pg_stat_backtrace/ptrace/process"
)

// maxCopied is the largest number of processes in kernel.copied. maxStacks is the largest number of stacks that one
// call of Stacks returns.
const (
	maxCopied = 256
	maxStacks = 1024
)

// Stacks implements Stacker.
func (k *kernel) Stacks() (list []Stack, unnamed int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	var copies []copiedStack // all are read before any mappings, so that the mappings contain the memory of all of them
	for len(copies) < maxStacks {
		s, ok := k.programs.Stack()
		if !ok {
			break
		}
		copies = append(copies, s)
	}
	fresh := make(map[int]bool)
	for i := range copies {
		s := &copies[i]
		p := k.copiedProcess(s.PID, fresh)
		if p == nil {
			unnamed++
			continue
		}
		r := &s.Registers
		list = append(list, Stack{PID: s.PID, Event: s.Event, Query: s.Query, Took: s.Took, Snapshot: p.Snapshot(
			&observe.CopiedStack{
				TID: s.PID, IP: r[16], SP: r[19], BP: r[4], BX: r[5], R12: r[3], R13: r[2], R14: r[1], R15: r[0],
				Data: s.Data, Cut: s.Cut,
			})})
	}
	return list, unnamed
}

// copiedProcess returns a process with mappings that were read after its stacks were copied; nil if it has ended or cannot be
// read. The map fresh has the processes whose mappings the present call of Stacks has already read.
func (k *kernel) copiedProcess(pid int, fresh map[int]bool) *observe.CopiedProcess {
	p := k.copied[pid]
	if p != nil && !p.Lives() {
		p.Release()
		delete(k.copied, pid)
		p = nil
	}
	switch {
	case p == nil && len(k.copied) >= maxCopied:
		for other := range k.copied {
			k.copied[other].Release()
			delete(k.copied, other)
			break
		}
		fallthrough
	case p == nil:
		made, err := observe.NewCopiedProcess(process.Target{
			PID: pid, UID: -1, PPID: k.procs.Postmaster, Rights: k.procs.Rights,
		})
		if err != nil {
			return nil
		}
		if k.copied == nil {
			k.copied = make(map[int]*observe.CopiedProcess)
		}
		k.copied[pid], p = made, made
	case !fresh[pid] && p.Refresh() != nil:
		return nil
	}
	fresh[pid] = true
	return p
}
