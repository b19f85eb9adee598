package metrics

import (
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"pg_stat_backtrace/worker/pg/state"
)

// Server is a server and what its processes do now.
type Server struct {
	// Running is set if the server runs, even if its processes cannot be read.
	Running bool
	// Version is the major version.
	Version int
	// DataDir is the data directory, as the worker reaches it.
	DataDir string
	// MaxConnections is the server's parameter; 0: it is not known.
	MaxConnections int
	// Processes is empty if the processes cannot be read.
	Processes []state.Process
	// WAL has the positions of WAL; nil: they are not known.
	WAL *state.Positions
}

// activeKey names a series of active sessions.
type activeKey struct{ class, event, backend string }

// activities counts processes by what they do.
type activities struct {
	read func() (Server, error)

	mu    sync.Mutex
	names admitted[activeKey]
	seen  map[activeKey]bool // series that exist, at 0 while no process belongs to them
}

func newActivities(read func() (Server, error)) *activities {
	return &activities{
		read: read, names: admitted[activeKey]{most: maxActive - maxTypes}, seen: make(map[activeKey]bool),
	}
}

// running is the type and the event of an active process that does not wait.
const running = "CPU"

// stateNames are the values of the label of sessions.
var stateNames = map[state.State]string{
	state.Active: "active", state.Idle: "idle", state.IdleInTransaction: "idle in transaction",
	state.Aborted: "aborted", state.Other: other,
}

// Describe describes nothing: the metrics depend on what processes do.
func (a *activities) Describe(chan<- *prometheus.Desc) {}

// Collect reads the processes.
func (a *activities) Collect(out chan<- prometheus.Metric) {
	server, err := a.read()
	out <- gauge(serverUp, oneIf(server.Running))
	out <- gauge(serverReadable, oneIf(err == nil))
	// A path may have any bytes, a label may not.
	dir := strings.ToValidUTF8(server.DataDir, "\uFFFD")
	out <- gauge(serverInfo, 1, strconv.Itoa(server.Version), dir)
	if err != nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	counts := make(map[activeKey]int)
	states := make(map[state.State]int)
	for i := range server.Processes {
		p := &server.Processes[i]
		if p.BackendType == state.ClientBackend {
			states[p.State]++
		}
		if !p.Active() {
			continue
		}
		key := activeKey{p.WaitType, p.WaitEvent, p.BackendType}
		if key.class == "" {
			key.class, key.event = running, running
		}
		if !a.names.admit(key) {
			key.event, key.backend = other, other
		}
		a.seen[key] = true
		counts[key]++
	}
	for key := range a.seen {
		out <- gauge(active, float64(counts[key]), key.class, key.event, key.backend)
	}
	connected := 0
	for state, name := range stateNames {
		out <- gauge(sessions, float64(states[state]), name)
		connected += states[state]
	}
	out <- gauge(connections, float64(connected))
	if server.MaxConnections > 0 {
		out <- gauge(maxConnections, float64(server.MaxConnections))
	}
	transaction, wait := longest(server.Processes, time.Now())
	out <- gauge(oldestTransaction, transaction.Seconds())
	out <- gauge(longestLockWait, wait.Seconds())
	collectWAL(out, server.WAL)
}

// collectWAL collects the lag of replication. The lag of replay exists on a standby only.
func collectWAL(out chan<- prometheus.Metric, p *state.Positions) {
	if p == nil {
		return
	}
	out <- gauge(walReceivers, float64(len(p.Senders)))
	out <- gauge(replicationLag, float64(p.SenderLag()))
	if p.Recovery {
		out <- gauge(replayLag, float64(p.ReplayLag()))
	}
}

// longest returns the age of the oldest open transaction of a client backend, and of the oldest wait of any process for
// a heavyweight lock; 0 without one.
func longest(processes []state.Process, now time.Time) (transaction, wait time.Duration) {
	for i := range processes {
		p := &processes[i]
		if p.Transaction != nil && p.BackendType == state.ClientBackend {
			transaction = max(transaction, now.Sub(*p.Transaction))
		}
		if p.LockWait != nil {
			wait = max(wait, now.Sub(*p.LockWait))
		}
	}
	return transaction, wait
}

func oneIf(condition bool) float64 {
	if condition {
		return 1
	}
	return 0
}

func gauge(d *prometheus.Desc, value float64, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
}

func counter(d *prometheus.Desc, value float64, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(d, prometheus.CounterValue, value, labels...)
}
