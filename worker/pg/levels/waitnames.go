package levels

import (
	"maps"
	"slices"
)

// WaitNames names the wait events of one major version.
type WaitNames struct{ server Server }

// NewWaitNames returns the names of a major version's events. The error is ErrNotServer for an unknown version.
func NewWaitNames(major int) (*WaitNames, error) {
	events, err := waitEvents(major)
	if err != nil {
		return nil, err
	}
	return &WaitNames{Server{Major: major, waits: events}}, nil
}

// Name returns type and name of an event as in pg_stat_activity, and whether the version's table has it. An event that
// an extension or a later minor release has added is named by its number, like "#70".
func (n *WaitNames) Name(id uint32) (class, event string, known bool) {
	w := n.server.waitEvent(id)
	if w.Class == "" {
		return "Unknown", "#" + hex(id), false
	}
	return w.Class, w.Event, n.server.waits[id] != ""
}

// Events returns the names of all events of the version, in alphabetical order. Extensions may add others.
func (n *WaitNames) Events() []string {
	return slices.Compact(slices.Sorted(maps.Values(n.server.waits)))
}

func hex(id uint32) string {
	const digits = "0123456789abcdef"
	text := make([]byte, 8)
	for i := range text {
		text[i] = digits[id>>(28-4*i)&15]
	}
	return string(text)
}
