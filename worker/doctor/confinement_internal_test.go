package doctor

import (
	"slices"
	"strings"
	"testing"
)

func TestConfinement(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		got  finding
		mark mark
		text string
	}{
		{"no AppArmor", appArmor("", ""), good, "not active"},
		{"unconfined", appArmor("Y", "unconfined"), good, "unconfined"},
		{"complain", appArmor("Y", "pg (complain)"), good, "only logs"},
		{"docker", appArmor("Y", "docker-default (enforce)"), warn, "docker-default"},
		{"containerd", appArmor("Y", "cri-containerd.apparmor.d (enforce)"), warn, "cri-containerd"},
		{"permissive", seLinux("0", "system_u:system_r:container_t:s0"), good, "permissive"},
		{"enforcing", seLinux("1", "system_u:system_r:container_t:s0"), good, "container_t"},
		{"quota", quota(0.5, false)[0], warn, "quota of 0.50 processors"},
		{"no filter", seccompMode(0, nil), good, "no filter"},
		{"runtime's default", seccompMode(2, []string{callPerf}), warn, "without perf_event_open"},
		{"no ptrace", seccompMode(2, []string{callPtrace, callRead, callPerf}), bad, "refuses ptrace and process_vm_readv"},
		{"allowed", seccompMode(2, nil), good, "allows"},
		{"host", userNamespace("         0          0 4294967295\n"), good, "the host's"},
		{"nested", userNamespace("0 100000 65536\n"), good, "0 100000 65536"},
		{"unmapped", userNamespace(""), warn, "not mapped"},
	} {
		if c.got.mark != c.mark || !strings.Contains(c.got.text, c.text) {
			t.Errorf("%s: %+v", c.name, c.got)
		}
		if c.got.mark != good && c.got.hint == "" {
			t.Errorf("%s: no hint", c.name)
		}
	}
}

// TestDeniedCalls: without a filter no call counts as refused.
func TestDeniedCalls(t *testing.T) {
	t.Parallel()
	denied := deniedCalls()
	if i := slices.Index(denied, callPtrace); i >= 0 {
		t.Errorf("ptrace counts as refused: %q", denied)
	}
	found := confinement()
	for _, what := range []string{"apparmor", "seccomp", "user namespace"} {
		if !slices.ContainsFunc(found, func(f finding) bool { return f.what == what }) {
			t.Errorf("no line %q", what)
		}
	}
}
