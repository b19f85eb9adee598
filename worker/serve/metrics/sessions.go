package metrics

import (
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"pg_stat_backtrace/worker/pg/state"
)

// Server is a server, and the states of its processes now.
type Server struct {
	// Running is set if the server runs, even if its processes cannot be read.
	Running bool
	// Version is the major version.
	Version int
	// DataDir is the data directory, by a path that the worker can use.
	DataDir string
	// MaxConnections is the server's parameter max_connections; 0: it is not known.
	MaxConnections int
	// OrdinarySlots is the number of these connections that are not reserved; 0: it is not known.
	OrdinarySlots int
	// Processes is empty if the processes cannot be read.
	Processes []state.Process
	// WAL has the positions of WAL; nil: they are not known.
	WAL *state.Positions
}

// activeKey has the labels of a series of active_sessions.
type activeKey struct{ class, event, backend string }

// activities counts the server's processes by state and wait event.
type activities struct {
	read func() (Server, error)

	mu    sync.Mutex
	names admitted[activeKey]
	seen  map[activeKey]bool // series that an earlier scrape has sent: each is sent again, as 0 if it has no process
}

func newActivities(read func() (Server, error)) *activities {
	return &activities{
		read: read, names: admitted[activeKey]{most: maxActive - maxTypes}, seen: make(map[activeKey]bool),
	}
}

// running is the value of the labels type and event for an active process that does not wait.
const running = "CPU"

// stateNames are the values of the label state of the metric sessions.
var stateNames = map[state.State]string{
	state.Active: "active", state.Idle: "idle", state.IdleInTransaction: "idle in transaction",
	state.Aborted: "aborted", state.Other: other,
}

// Describe sends nothing, because the set of metrics depends on what processes do.
func (a *activities) Describe(chan<- *prometheus.Desc) {}

// Collect reads the processes and sends the metrics.
func (a *activities) Collect(out chan<- prometheus.Metric) {
	server, err := a.read()
	out <- gauge(serverUp, oneIf(server.Running))
	out <- gauge(serverReadable, oneIf(err == nil))
	// A path can have any bytes. A label must be UTF-8.
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
	if server.OrdinarySlots > 0 {
		out <- gauge(maxOrdinary, float64(server.OrdinarySlots))
	}
	transaction, wait := longest(server.Processes, time.Now())
	out <- gauge(oldestTransaction, transaction.Seconds())
	out <- gauge(longestLockWait, wait.Seconds())
	collectWAL(out, server.WAL)
}

// collectWAL sends the lag of replication; on a standby, also the lag of replay.
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

// longest returns the age of the oldest open transaction of a client backend, and the longest time for which a process has waited
// for a heavyweight lock until now; 0: there is no such transaction or process.
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
