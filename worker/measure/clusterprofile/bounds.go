package clusterprofile

import (
	"slices"
	"unsafe"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/capture"
)

// Bounds of the memory of one profile. The worker makes up to two profiles at a time.
const (
	// maxStackBytes bounds the memory of the different stacks, in bytes.
	maxStackBytes = 64 << 20
	// maxSamples bounds the number of samples. A sample is a stack with its labels, and takes about 1 kB. In the pprof
	// profile, a stack becomes two samples if its process both slept and waited for a processor, as long as there is
	// room.
	maxSamples = 1 << 16
	// maxSpaceBytes bounds the memory for mappings of processes whose mappings differ from the postmaster's, in bytes.
	maxSpaceBytes = 24 << 20
)

// counted counts a new sample, or a new waitKey, and reports whether there is room for it. When half of the room is used, it makes
// the following stacks less exact, so that fewer of them differ.
func (c *collector) counted() bool {
	if c.samples >= maxSamples {
		return false
	}
	if c.samples++; c.samples > maxSamples/2 {
		c.stacks.Shorten()
	}
	return true
}

// addRunning counts a stack that was taken while its process had a processor. If there is no room for another sample, it
// counts the stack in a joint sample of the process and its state, without frames.
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

// joint returns the labels of a joint sample, which stands for all stacks of one process in one state that got no own sample
// for lack of room.
func (c *collector) joint(l labels) labels {
	l.application, l.event = "", 0
	l.query = c.wantedQuery(l.query)
	return l
}

// wantedQuery returns a query id if the filter contains it, else 0: a joint sample is for all other queries together.
func (c *collector) wantedQuery(query uint64) uint64 {
	if query != 0 && slices.Contains(c.options.Filter.QueryIDs, int64(query)) {
		return query
	}
	return 0
}

// waitTimeOf returns a key and its waitTime. Usually this is the given key. If there is no room for a new waitTime, it is the key
// of the joint waitTime for the process and its state.
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

// share returns the weight of a stack in the waitTime w. The parameter of is the key of w. If there is no room for another weight,
// it returns a joint weight of the wait, without frames.
func (c *collector) share(of waitKey, w *waitTime, key stackKey) *weight {
	// Use the labels of the wait: they differ from the stack's labels if waitTimeOf had no room for the wait.
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

// roomFor reports whether there is room for the mappings of another process. If there is, it counts their memory.
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
