package clusterprofile

import (
	"slices"
	"unsafe"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/capture"
)

// Bounds of the memory of one profile. The worker makes up to two at a time.
const (
	// maxStackBytes is for the different stacks.
	maxStackBytes = 64 << 20
	// maxSamples is for the samples: stacks with different labels. Each takes about 1 kB, with its part of the result.
	// There a stack is two samples if the process has slept and waited for a processor, as long as there is room.
	maxSamples = 1 << 16
	// maxSpaceBytes is for the mappings of processes that have others than the postmaster.
	maxSpaceBytes = 24 << 20
)

// counted counts a sample, or a wait of a new kind, and reports whether there was room for it.
func (c *collector) counted() bool {
	if c.samples >= maxSamples {
		return false
	}
	if c.samples++; c.samples > maxSamples/2 {
		c.stacks.Shorten()
	}
	return true
}

// addRunning counts a stack of a process on a processor. If there is no room for another sample, the stack counts in
// one sample of the process and its state.
func (c *collector) addRunning(key stackKey) {
	if _, known := c.cpu[key]; !known && (key.thread == capture.TooManyStacks || !c.counted()) {
		key.labels = c.joint(key.labels)
		key.space, key.thread = c.base, capture.TooManyStacks
	}
	if key.thread == capture.TooManyStacks {
		c.summary.Joined++
	}
	c.cpu[key]++
}

// joint returns the labels of the sample for all stacks of a process and a state that found no room.
func (c *collector) joint(l labels) labels {
	l.application, l.event = "", 0
	l.query = c.wantedQuery(l.query)
	return l
}

// wantedQuery returns a query id if the filter asks for it. The sum of other ones needs no id.
func (c *collector) wantedQuery(query uint64) uint64 {
	if query != 0 && slices.Contains(c.options.Filter.QueryIDs, int64(query)) {
		return query
	}
	return 0
}

// waitTimeOf returns the element for what a process does. If there is no room for another one, it returns that for all
// such waits of the process and its state.
func (c *collector) waitTimeOf(key waitKey) (waitKey, *waitTime) {
	if w := c.off[key]; w != nil {
		return key, w
	}
	if !c.counted() {
		key.event, key.query = 0, c.wantedQuery(key.query)
	}
	w := c.off[key]
	if w == nil {
		w = &waitTime{stacks: make(map[stackKey]*weight)}
		c.off[key] = w
	}
	return key, w
}

// share returns the element for a stack of a wait. If there is no room for another one, the stack counts in one sample
// of the wait.
func (c *collector) share(of waitKey, w *waitTime, key stackKey) *weight {
	// The labels may differ from those of the wait if there was no room for it.
	key.labels.event, key.labels.offCPU = of.event, ""
	if key.labels.state != absent {
		key.labels.query = of.query
	}
	if share := w.stacks[key]; share != nil && key.thread != capture.TooManyStacks {
		return share
	}
	if key.thread == capture.TooManyStacks || !c.counted() {
		key.labels.application = ""
		key.space, key.thread = c.base, capture.TooManyStacks
		c.summary.Joined++
	}
	share := w.stacks[key]
	if share == nil {
		share = &weight{}
		w.stacks[key] = share
	}
	return share
}

// roomFor reports whether there is room for the mappings of another process, and counts them.
func (c *collector) roomFor(maps []process.Mapping) bool {
	n := 0
	for i := range maps {
		n += int(unsafe.Sizeof(maps[i])) + len(maps[i].Path)
	}
	if c.spaceBytes+n > maxSpaceBytes {
		return false
	}
	c.spaceBytes += n
	return true
}
