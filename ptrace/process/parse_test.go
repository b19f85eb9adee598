package process

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func TestParseMaps(t *testing.T) {
	const text = `00400000-00452000 r-xp 00000000 08:02 173521      /usr/bin/db us
00651000-00652000 rw-p 00051000 fe:1f 18446744073709551615                 /tmp/x (deleted)
00e03000-00e24000 rw-p 00000000 00:00 0           [heap]
7ffd1000-7ffd2000 ---p 00000000 00:00 0
7fff2000-7fff3000 rwxs 00001000 00:01 7 /SYSV00000000 (deleted)
`
	maps, err := ParseMaps([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	want := []Mapping{
		{0x400000, 0x452000, Read | Exec, 0, 8, 2, 173521, "/usr/bin/db us", false},
		{0x651000, 0x652000, Read | Write, 0x51000, 0xfe, 0x1f, 1<<64 - 1, "/tmp/x", true},
		{0xe03000, 0xe24000, Read | Write, 0, 0, 0, 0, "[heap]", false},
		{0x7ffd1000, 0x7ffd2000, 0, 0, 0, 0, 0, "", false},
		{0x7fff2000, 0x7fff3000, Read | Write | Exec | Shared, 0x1000, 0, 1, 7, "/SYSV00000000", true},
	}
	if len(maps) != len(want) {
		t.Fatalf("%d mappings", len(maps))
	}
	for i := range want {
		if maps[i] != want[i] {
			t.Errorf("%+v, want %+v", maps[i], want[i])
		}
	}
}

func TestParseMapsRefuses(t *testing.T) {
	for name, text := range map[string]string{
		"text":              "no maps at all\n",
		"an empty line":     "\n",
		"an empty range":    "00400000-00400000 r-xp 00000000 08:02 1 /x\n",
		"a range backwards": "00400000-00300000 r-xp 00000000 08:02 1 /x\n",
		"overlapping ranges": "00400000-00500000 r-xp 00000000 08:02 1 /x\n" +
			"00480000-00600000 r-xp 00000000 08:02 1 /x\n",
		"an address of 17 digits": "00400000-10000000000000000 r-xp 00000000 08:02 1 /x\n",
		"unknown rights":          "00400000-00500000 rqxp 00000000 08:02 1 /x\n",
		"an inode of letters":     "00400000-00500000 r-xp 00000000 08:02 x /x\n",
		"a cut line":              "00400000-00500000 r-xp 000",
	} {
		if maps, err := ParseMaps([]byte(text)); err == nil {
			t.Errorf("%s: %+v", name, maps)
		}
	}
}

// TestParseStatNames checks names that contain the characters which usually end a name.
func TestParseStatNames(t *testing.T) {
	const rest = " S 17 4711 4711 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 3 0 987654 " +
		"1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 17 5 0 0 0"
	for _, name := range []string{"postgres", "a b", "a) b", ") S 1 (", "(", "", "\n", "\xff"} {
		s, err := ParseStat("4711 (" + name + ")" + rest)
		if err != nil || s.Comm != name || s.PID != 4711 || s.State != 'S' || s.PPID != 17 ||
			s.Threads != 3 || s.StartTime != 987654 || s.Processor != 5 {
			t.Errorf("%q: %+v, %v", name, s, err)
		}
	}
	for _, text := range []string{"", "1", "1 (x", "1 (x)", "1 (x) S", "x (x)" + rest, "-1 (x)" + rest} {
		if s, err := ParseStat(text); err == nil {
			t.Errorf("%q: %+v", text, s)
		}
	}
}

// TestWorker checks the flags of kernels 5.12 to 6.18, and other meanings of the same bits in older kernels.
func TestWorker(t *testing.T) {
	for text, want := range map[string]bool{
		"1 (iou-wrk-4711) S 1 1 1 0 -1 4210768": true, "1 (iou-sqp-4711) R 1 1 1 0 -1 4194384": true,
		"1 (vhost-4711) S 1 1 1 0 -1 4210752": true, "1 (iou-wrk-4711) S 1 1 1 0 -1 4194304": false,
		"1 (CPU 0/KVM) R 1 1 1 0 -1 4194384": false, "1 (postgres) S 1 1 1 0 -1 4194560": false,
	} {
		s, err := ParseStat(text + strings.Repeat(" 0", 43))
		if err != nil || s.Worker() != want {
			t.Errorf("%s: %t, %v", text, s.Worker(), err)
		}
	}
}

func TestParseSyscall(t *testing.T) {
	for text, want := range map[string]Syscall{
		"running\n": {Running: true},
		"232 0x4 0x1 0x2 0x3 0x4 0x5 0x7ffe12345678 0x7f0011223344\n": {
			Number: 232, Args: [6]uint64{4, 1, 2, 3, 4, 5}, SP: 0x7ffe12345678, PC: 0x7f0011223344,
		},
		"-1 0x7ffe12345678 0x7f0011223344\n": {Number: -1, SP: 0x7ffe12345678, PC: 0x7f0011223344},
	} {
		if got, err := ParseSyscall(text); err != nil || got != want {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "\n", "7", "7 0x1", "x 0x1 0x2", "0 0x1 0x2 0x3 0x4 0x5 0x6 0x7",
		"0 0x1 0x2 x 0x4 0x5 0x6 0x7 0x8"} {
		if got, err := ParseSyscall(text); err == nil {
			t.Errorf("%q: %+v", text, got)
		}
	}
}

func TestParseKernelStack(t *testing.T) {
	text := "[<0>] ep_poll+0x2f0/0x3d0\n[<0>] do_syscall_64+0x71/0x280\nwhat is this\n[<0>] \n"
	if got := ParseKernelStack(text); !slices.Equal(got, []string{"ep_poll+0x2f0/0x3d0", "do_syscall_64+0x71/0x280"}) {
		t.Errorf("%q", got)
	}
	if got := ParseKernelStack(strings.Repeat(text, 1000)); len(got) != 64 {
		t.Errorf("%d frames", len(got))
	}
}

// TestOwnProcess compares the parsed data of this process with the results of system calls.
func TestOwnProcess(t *testing.T) {
	pid := os.Getpid()
	stat, err := ReadStat(pid)
	if err != nil || stat.PID != pid || stat.PPID != os.Getppid() || stat.StartTime == 0 {
		t.Errorf("stat %+v, %v", stat, err)
	}
	status, err := ReadStatus(pid)
	if err != nil || status.TGID != pid || status.PPID != os.Getppid() || status.UID[0] != os.Getuid() ||
		status.UID[1] != os.Geteuid() || status.GID[1] != os.Getegid() || status.Name != stat.Comm {
		t.Errorf("status %+v, %v", status, err)
	}
	if groups, err := os.Getgroups(); err != nil || !slices.Equal(groups, status.Groups) {
		t.Errorf("groups %v, want %v, %v", status.Groups, groups, err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	maps, err := Maps(pid)
	own, stack := false, false
	for i := range maps {
		own = own || maps[i].Path == exe && maps[i].Perms&Exec != 0
		stack = stack || maps[i].Path == "[stack]"
	}
	if err != nil || !own || !stack {
		t.Errorf("maps: executable %v, stack %v, %v", own, stack, err)
	}
	tids, err := Threads(pid)
	if err != nil || len(tids) < 2 {
		t.Errorf("threads %v, %v", tids, err)
	}
	if link, err := os.Readlink("/proc/self/ns/pid"); err == nil {
		inode, err := Namespace(pid, "pid")
		if err != nil || link != "pid:["+strconv.FormatUint(inode, 10)+"]" {
			t.Errorf("namespace %d, %v; the link says %s", inode, err, link)
		}
	}
}

func TestChildren(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Wait() }()
	defer func() { _ = cmd.Process.Kill() }()
	for name, list := range map[string]func(int) ([]int, error){"Children": Children, "by scan": childrenByScan} {
		children, err := list(os.Getpid())
		found := false
		for _, pid := range children {
			found = found || pid == cmd.Process.Pid
		}
		if err != nil || !found {
			t.Errorf("%s: %v, %v", name, children, err)
		}
	}
}

func TestGone(t *testing.T) {
	const pid = 1<<31 - 1
	errs := map[string]error{}
	_, errs["stat"] = ReadStat(pid)
	_, errs["status"] = ReadStatus(pid)
	_, errs["maps"] = Maps(pid)
	_, errs["threads"] = Threads(pid)
	_, errs["syscall"] = ReadSyscall(pid, pid)
	_, errs["wchan"] = WaitChannel(pid, pid)
	_, errs["namespace"] = Namespace(pid, "pid")
	for what, err := range errs {
		if !errors.Is(err, ErrGone) {
			t.Errorf("%s of no process: %v", what, err)
		}
		if errors.Is(err, fs.ErrPermission) {
			t.Errorf("%s of no process is a matter of permission: %v", what, err)
		}
	}
}

func FuzzParseMaps(f *testing.F) {
	f.Add([]byte("00400000-00452000 r-xp 00000000 08:02 173521 /usr/bin/dbus (deleted)\n"))
	f.Add([]byte("ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		maps, err := ParseMaps(data)
		if err != nil && maps != nil {
			t.Fatalf("both a value and %v", err)
		}
		last := uint64(0)
		for i := range maps {
			if maps[i].Start < last || maps[i].End <= maps[i].Start {
				t.Fatalf("out of order: %+v", maps)
			}
			last = maps[i].End
		}
	})
}

func FuzzParseStat(f *testing.F) {
	f.Add("4711 (a) b) S 17 4711 4711 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 3 0 987654 " +
		"1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 17 5 0 0 0")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ParseStat(text)
		if err != nil && s != (Stat{}) {
			t.Fatalf("both %+v and %v", s, err)
		}
		if err == nil && (s.PID < 0 || !strings.Contains(text, s.Comm)) {
			t.Fatalf("%+v of %q", s, text)
		}
	})
}

func FuzzParseStatus(f *testing.F) {
	if data, err := os.ReadFile("/proc/self/status"); err == nil {
		f.Add(string(data))
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ParseStatus(text)
		if err != nil && s.TGID != 0 {
			t.Fatalf("both %+v and %v", s, err)
		}
	})
}

func FuzzParseSyscall(f *testing.F) {
	f.Add("running")
	f.Add("232 0x4 0x1 0x2 0x3 0x4 0x5 0x7ffe12345678 0x7f0011223344\n")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ParseSyscall(text)
		if err != nil && (s.Running || s.PC != 0) {
			t.Fatalf("both %+v and %v", s, err)
		}
	})
}
