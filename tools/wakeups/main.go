// wakeups prints how often processes wake up. A process wakes up when one of its threads runs after a pause of all its
// threads. What its threads do within the next milliseconds, and the switches between them, is the same wake-up.
package main

import (
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

// target is a measured process.
type target struct {
	pid, ran int64 // ran: processor time in nanoseconds, as the kernel counts it
	active   time.Time
	wakeups  int
	switches int64
	spent    int64
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("wakeups: ")
	duration := flag.Duration("duration", 20*time.Second, "how long to measure")
	gap := flag.Duration("gap", 50*time.Millisecond, "the shortest pause between two wake-ups")
	step := flag.Duration("step", 2*time.Millisecond, "the time between two looks at the processes")
	flag.Usage = func() {
		fmt.Fprintf(os.Stderr, "usage: wakeups [OPTION]... PID...\n\nPrint how often processes wake up.\n\n")
		flag.PrintDefaults()
	}
	flag.Parse()
	var all []*target
	for _, arg := range flag.Args() {
		pid, err := strconv.ParseInt(arg, 10, 32)
		if err != nil || pid <= 0 {
			log.Fatalf("%q is no process id", arg)
		}
		t := &target{pid: pid}
		t.switches, t.spent = -switches(pid), -processorTime(pid)
		t.ran = -t.spent
		all = append(all, t)
	}
	if len(all) == 0 {
		flag.Usage()
		os.Exit(2)
	}
	begin := time.Now()
	for time.Since(begin) < *duration {
		time.Sleep(*step)
		now := time.Now()
		for _, t := range all {
			t.look(now, *gap)
		}
	}
	report(all, time.Since(begin))
}

// look counts a wake-up if the process has run, and had not for the gap before.
func (t *target) look(now time.Time, gap time.Duration) {
	ran := processorTime(t.pid)
	if ran == t.ran {
		return
	}
	if now.Sub(t.active) > gap {
		t.wakeups++
	}
	t.ran, t.active = ran, now
}

// report prints a line for each process, and the sum.
func report(all []*target, passed time.Duration) {
	fmt.Printf("%8s %9s %11s %18s %15s\n", "process", "wake-ups", "a second", "context switches", "processor time")
	var sum target
	line := func(name string, t *target) {
		fmt.Printf("%8s %9d %11.2f %18d %12.2f ms\n", name, t.wakeups, float64(t.wakeups)/passed.Seconds(), t.switches,
			float64(t.spent)/1e6)
	}
	for _, t := range all {
		t.switches += switches(t.pid)
		t.spent += processorTime(t.pid)
		line(strconv.FormatInt(t.pid, 10), t)
		sum.wakeups, sum.switches, sum.spent = sum.wakeups+t.wakeups, sum.switches+t.switches, sum.spent+t.spent
	}
	if len(all) > 1 {
		line("all", &sum)
	}
}

// processorTime returns the processor time of a process. Its clock is exact, unlike the ticks in /proc/PID/stat.
func processorTime(pid int64) int64 {
	const clockOfProcess = 2 // CPUCLOCK_SCHED, see clock_getcpuclockid(3)
	var spec syscall.Timespec
	clock := uintptr(^pid<<3 | clockOfProcess)
	if _, _, err := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, clock, uintptr(unsafe.Pointer(&spec)), 0); err != 0 {
		log.Fatalf("process %d: %v", pid, err)
	}
	return spec.Nano()
}

var switchLine = regexp.MustCompile(`(?m)^(?:non)?voluntary_ctxt_switches:\s*(\d+)$`)

// switches returns how often the threads of a process have given a processor up, or lost it.
func switches(pid int64) (n int64) {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	for _, file := range files {
		text, _ := os.ReadFile(file) // a thread may have ended
		for _, match := range switchLine.FindAllStringSubmatch(string(text), -1) {
			count, _ := strconv.ParseInt(strings.TrimSpace(match[1]), 10, 64)
			n += count
		}
	}
	return n
}
