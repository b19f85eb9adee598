// Command become is started as root by TestBecomeServerUser. It is built without cgo, like the worker:
//
//	become DATADIR PID       becomes the server's user, captures the server process PID, prints a Report, waits for ^D
//	become CONNECTION PID    the same for the server that the connection string CONNECTION (host=...) names
//	become trace PID         tries to trace the process PID, and prints the error
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"pg_stat_backtrace/ptrace"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/snapshot"
	"pg_stat_backtrace/worker/pg/cluster"
)

// Report is printed as JSON. The test parses it with an equal type.
type Report struct {
	Privileges cluster.Privileges  `json:"privileges"`
	Threads    []map[string]string `json:"threads"`
	Owner      uint32              `json:"owner"`
	Stack      int                 `json:"stack"`
	Urgent     bool                `json:"urgent"`
	Role       string              `json:"role"`
	Home       string              `json:"home"`
	User       string              `json:"user"`
	BackToRoot string              `json:"back_to_root"`
}

func main() {
	err := run()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	pid, err := strconv.Atoi(os.Args[2])
	if err != nil {
		return err
	}
	if os.Args[1] == "trace" {
		_, err := ptrace.Capture(context.Background(), process.Target{PID: pid, UID: -1}, snapshot.Options{})
		_, err = fmt.Fprintln(os.Stdout, err)
		return err
	}
	var stop sync.WaitGroup
	stop.Add(1)
	defer stop.Done()
	busyThreads(&stop)
	options := cluster.Options{DataDir: os.Args[1]}
	if strings.HasPrefix(os.Args[1], "host=") {
		options = cluster.Options{ConnString: os.Args[1]}
	}
	c, err := cluster.Find(context.Background(), options)
	if err != nil {
		return err
	}
	r := Report{}
	if r.Privileges, err = cluster.BecomeServerUser(c); err != nil {
		return err
	}
	busyThreads(&stop)
	if err := r.fill(c, pid); err != nil {
		return err
	}
	if err := json.NewEncoder(os.Stdout).Encode(r); err != nil {
		return err
	}
	_, _ = os.Stdin.Read(make([]byte, 1))
	return nil
}

// busyThreads makes threads that the Go runtime keeps: a goroutine is locked to each.
func busyThreads(stop *sync.WaitGroup) {
	var started sync.WaitGroup
	for range 5 {
		started.Add(1)
		go func() {
			runtime.LockOSThread()
			started.Done()
			stop.Wait()
		}()
	}
	started.Wait()
}

func (r *Report) fill(c cluster.Cluster, pid int) error {
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return err
	}
	for _, task := range tasks {
		status, err := os.ReadFile("/proc/self/task/" + task.Name() + "/status")
		if err != nil {
			return err
		}
		r.Threads = append(r.Threads, lines(string(status)))
	}
	info, err := os.Stat("/proc/self/status")
	if err != nil {
		return err
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		r.Owner = stat.Uid
	}
	r.Home, r.User = os.Getenv("HOME"), os.Getenv("PGUSER")
	if err := syscall.Setuid(0); err != nil {
		r.BackToRoot = err.Error()
	}
	target, err := c.Contains(pid)
	if err != nil {
		return err
	}
	defer target.Held.Release()
	snap, err := ptrace.Capture(context.Background(), target, snapshot.Options{})
	if err != nil {
		return err
	}
	r.Stack, r.Urgent = len(snap.Threads[0].Stack.Data), ptrace.MayHurry()
	return r.login(c)
}

var line = regexp.MustCompile(`(?m)^(Uid|Gid|Groups|Cap\w+|NoNewPrivs):\s*(.*)$`)

func lines(status string) map[string]string {
	found := make(map[string]string)
	for _, m := range line.FindAllStringSubmatch(status, -1) {
		found[m[1]] = strings.Join(strings.Fields(m[2]), " ")
	}
	return found
}

// login connects as the worker does, without a user name in the connection string.
func (r *Report) login(c cluster.Cluster) error {
	conn, err := cluster.NewConn(cluster.ConnOptions{ConnString: "dbname=template1", Cluster: &c, Check: c.Verify})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	go func() { _ = conn.Run(ctx) }()
	for ctx.Err() == nil {
		err = conn.Query(ctx, func(ctx context.Context, conn *pgx.Conn) error {
			return conn.QueryRow(ctx, "SELECT session_user::text").Scan(&r.Role)
		})
		if err == nil {
			return nil
		}
		time.Sleep(time.Millisecond)
	}
	return err
}
