package cluster

import (
	"strings"
	"testing"
)

func TestProcView(t *testing.T) {
	const root = "22 1 254:0 / / rw,relatime - ext4 /dev/root rw\n"
	proc := func(options string) string {
		return "25 22 0:22 / /proc rw,nosuid shared:5 - proc proc " + options + "\n"
	}
	for name, test := range map[string]struct {
		mounts string
		hides  bool
		reason string
	}{
		"plain":             {root + proc("rw"), false, ""},
		"off":               {root + proc("rw,hidepid=off"), false, ""},
		"an old kernel's":   {root + proc("rw,hidepid=2"), true, "hidepid=2"},
		"zero":              {root + proc("rw,gid=4,hidepid=0"), false, ""},
		"mode 1":            {root + proc("rw,hidepid=noaccess"), true, "hidepid=noaccess"},
		"mode 2":            {root + proc("rw,gid=4,hidepid=invisible"), true, "hidepid=invisible"},
		"mode 4":            {root + proc("rw,hidepid=ptraceable,subset=pid"), true, "hidepid=ptraceable"},
		"covered":           {root + proc("rw") + proc("rw,hidepid=invisible"), true, "hidepid=invisible"},
		"uncovered":         {root + proc("rw,hidepid=invisible") + proc("rw"), false, ""},
		"below":             {root + proc("rw") + strings.ReplaceAll(proc("rw,hidepid=2"), "/proc", "/proc/x"), false, ""},
		"none":              {root, true, "no /proc"},
		"another":           {root + "25 22 0:22 / /proc rw - tmpfs none rw\n", true, "tmpfs"},
		"rubbish":           {"- - -\n x - y", true, "no /proc"},
		"without tags":      {"25 22 0:22 / /proc rw - proc proc rw,hidepid=2\n", true, "hidepid=2"},
		"nothing to say it": {"", true, "no /proc"},
	} {
		view := procView(test.mounts)
		if view.Hides != test.hides || !strings.Contains(view.Reason, test.reason) {
			t.Errorf("%s: %+v", name, view)
		}
	}
}
