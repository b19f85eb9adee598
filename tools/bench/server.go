package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

const serverTimeout = time.Minute

// server is a throw-away PostgreSQL server on a socket in a private directory.
type server struct {
	Version string
	root    string // holds data and socket
	binDir  string
	as      *syscall.Credential // nil: the current user
}

// findBinDir returns the folder of PostgreSQL's programs: the requested one, else the one from PG_CONFIG, else
// Debian's newest.
func findBinDir(ctx context.Context, asked string) (string, error) {
	if asked != "" {
		return asked, nil
	}
	if config := os.Getenv("PG_CONFIG"); config != "" {
		out, err := output(command(ctx, config, "--bindir"))
		return strings.TrimSpace(string(out)), err
	}
	var newest string
	version := -1
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	for _, f := range found {
		dir := filepath.Dir(f)
		if n, err := strconv.Atoi(filepath.Base(filepath.Dir(dir))); err == nil && n > version {
			newest, version = dir, n
		}
	}
	if newest == "" {
		return "", errors.New("no PostgreSQL server found; use -bindir or PG_CONFIG")
	}
	return newest, nil
}

// credential returns the user that runs the server when the benchmark runs as root, because PostgreSQL refuses root.
func credential() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil //nolint:nilnil // the current user
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		return nil, fmt.Errorf("PostgreSQL does not run as root: %w", err)
	}
	uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
	gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
	if err := errors.Join(err1, err2); err != nil {
		return nil, fmt.Errorf("ids of user %s: %w", u.Username, err)
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}

func startServer(ctx context.Context, binDir string) (*server, error) {
	binDir, err := findBinDir(ctx, binDir)
	if err != nil {
		return nil, err
	}
	as, err := credential()
	if err != nil {
		return nil, err
	}
	root, err := os.MkdirTemp("", "pgbench")
	if err != nil {
		return nil, fmt.Errorf("directory for the server: %w", err)
	}
	s := &server{root: root, binDir: binDir, as: as}
	if err := s.start(ctx); err != nil {
		return nil, errors.Join(err, s.stop(ctx))
	}
	return s, nil
}

func (s *server) start(ctx context.Context) error {
	if s.as != nil {
		if err := os.Chown(s.root, int(s.as.Uid), int(s.as.Gid)); err != nil {
			return fmt.Errorf("directory for the server: %w", err)
		}
	}
	_, err := output(s.command(ctx, "initdb", "-D", s.data(), "-U", "postgres", "-A", "trust", "--no-sync",
		"--no-locale", "-E", "UTF8"))
	if err != nil {
		return err
	}
	// no fsync; work_mem so that the busy backend sorts in memory
	settings := "-c listen_addresses= -c fsync=off -c work_mem=64MB -c unix_socket_directories=" + s.root
	_, err = output(s.command(ctx, "pg_ctl", "start", "-w", "-s", "-D", s.data(), "-l", s.log(), "-o", settings))
	if err != nil {
		log, _ := os.ReadFile(s.log())
		return fmt.Errorf("%w\n%s", err, log)
	}
	conn, err := s.connect(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	return conn.QueryRow(ctx, "SHOW server_version").Scan(&s.Version)
}

// stop ends the server, which ends all its backends, and removes its files. It works also after ctx has ended.
func (s *server) stop(ctx context.Context) error {
	var err error
	if _, missing := os.Stat(filepath.Join(s.data(), "postmaster.pid")); missing == nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), serverTimeout)
		defer cancel()
		_, err = output(s.command(ctx, "pg_ctl", "stop", "-w", "-s", "-m", "immediate", "-D", s.data()))
	}
	return errors.Join(err, os.RemoveAll(s.root))
}

// command is one of the server's programs, run by the server's user.
func (s *server) command(ctx context.Context, name string, arguments ...string) *exec.Cmd {
	return s.commandAt(ctx, filepath.Join(s.binDir, name), arguments...)
}

// commandAt is any program, run by the server's user.
func (s *server) commandAt(ctx context.Context, path string, arguments ...string) *exec.Cmd {
	c := command(ctx, path, arguments...)
	c.Dir = "/"
	// a new session: an interrupt at the terminal is for the benchmark, which then ends the program
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: s.as}
	return c
}

func (s *server) data() string { return filepath.Join(s.root, "data") }
func (s *server) log() string  { return filepath.Join(s.root, "log") }

// dsn is the server's connection string.
func (s *server) dsn() string {
	return fmt.Sprintf("host=%s port=5432 user=postgres dbname=postgres sslmode=disable", s.root)
}

func (s *server) connect(ctx context.Context) (*pgx.Conn, error) {
	conn, err := pgx.Connect(ctx, s.dsn())
	if err != nil {
		return nil, fmt.Errorf("connecting: %w", err)
	}
	return conn, nil
}
