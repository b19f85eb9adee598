package metrics

import (
	"bytes"
	"os"
	"runtime"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
)

// own collects the metrics of the worker's process, the queue and the export.
type own struct {
	cfg   *Config
	start time.Time
}

// Queue has the numbers of requests in the queues of all databases: waiting requests, and requests that the worker runs. Oldest is
// the age of the oldest request; 0: the queues are empty.
type Queue struct {
	Waiting, Claimed int
	Oldest           time.Duration
}

// Lost says for how long the worker has had no sessions in the server; 0: it has the sessions.
type Lost struct {
	// Main is about the session for permissions and names. Queue is about the sessions for queues, and is the longest time
	// of any database.
	Main, Queue time.Duration
}

// History counts the sweeps of the recorder since the start of the worker.
type History struct {
	Written, Lost uint64
	// Failing is the time for which no sweep could be written until now; 0: the last sweep was written.
	Failing time.Duration
}

// Export has the numbers of sent, failed, dropped and waiting profiles of one receiver.
type Export struct {
	// Type is pyroscope or otlp.
	Type string
	// Sent and Dropped are numbers of profiles, and Failed is a number of requests, since the start of the worker.
	Sent, Failed, Dropped uint64
	// Pending is the number of profiles that were not sent yet. PendingBytes is their size.
	Pending      int
	PendingBytes int64
}

// Describe sends nothing, because the set of metrics differs between scrapes.
func (o *own) Describe(chan<- *prometheus.Desc) {}

// Collect reads the figures and sends them.
func (o *own) Collect(out chan<- prometheus.Metric) {
	out <- gauge(buildInfo, 1, o.cfg.Version, runtime.Version())
	out <- gauge(startTime, float64(o.start.UnixMilli())/1000)
	var usage unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &usage) == nil {
		used := time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
		out <- counter(cpuSeconds, used.Seconds())
	}
	if pages, ok := residentPages(); ok {
		out <- gauge(residentMem, float64(pages)*float64(os.Getpagesize()))
	}
	if files, err := os.ReadDir("/proc/self/fd"); err == nil {
		out <- gauge(openFiles, float64(len(files)-1)) // without the descriptor of the directory itself
	}
	if o.cfg.Queue != nil {
		if q, ok := o.cfg.Queue(); ok {
			out <- gauge(queueWaiting, float64(q.Waiting))
			out <- gauge(queueClaimed, float64(q.Claimed))
			out <- gauge(queueOldest, q.Oldest.Seconds())
		}
	}
	if o.cfg.Lost != nil {
		lost := o.cfg.Lost()
		out <- gauge(sessionLost, lost.Main.Seconds(), "main")
		out <- gauge(sessionLost, lost.Queue.Seconds(), "queue")
	}
	if o.cfg.History != nil {
		if h, ok := o.cfg.History(); ok {
			out <- counter(historyWritten, float64(h.Written))
			out <- counter(historyLost, float64(h.Lost))
			out <- gauge(historyFailing, h.Failing.Seconds())
		}
	}
	if o.cfg.Export == nil {
		return
	}
	for _, e := range o.cfg.Export() {
		out <- counter(exportSent, float64(e.Sent), e.Type)
		out <- counter(exportFail, float64(e.Failed), e.Type)
		out <- counter(exportDrop, float64(e.Dropped), e.Type)
		out <- gauge(exportPending, float64(e.Pending), e.Type)
		out <- gauge(exportBytes, float64(e.PendingBytes), e.Type)
	}
}

// residentPages returns the resident set of this process, in pages (proc_pid_statm(5)).
func residentPages() (int, bool) {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0, false
	}
	fields := bytes.Fields(text)
	if len(fields) < 2 {
		return 0, false
	}
	pages, err := strconv.Atoi(string(fields[1]))
	return pages, err == nil
}
