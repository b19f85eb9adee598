package waits

import (
	"bytes"
	"errors"
	"testing"

	"github.com/cilium/ebpf/btf"
)

// TestPlace has a kernel that describes some functions twice, as Debian's Linux 6.1 does.
func TestPlace(t *testing.T) {
	t.Parallel()
	var types []btf.Type
	function := func(name string, parameters int) {
		proto := &btf.FuncProto{Return: (*btf.Void)(nil)}
		for range parameters {
			proto.Params = append(proto.Params, btf.FuncParam{Type: &btf.Int{Name: "int", Size: 4}})
		}
		types = append(types, &btf.Func{Name: name, Type: proto, Linkage: btf.StaticFunc})
	}
	for _, name := range []string{"one", "two", "three", "four"} {
		function(callPrefix+name, 1)
	}
	for _, name := range []string{"two", "three", "four"} {
		function(callPrefix+name, 0)
	}
	function("do_two", 2)
	b, err := btf.NewBuilder(types, nil)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := b.Marshal(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	kernel, err := btf.LoadSpecFromReader(bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		call
		want string
		bad  bool
	}{
		{call: call{name: "one", inner: "do_two"}, want: callPrefix + "one"},
		{call: call{name: "two", inner: "do_two"}, want: "do_two"},
		{call: call{name: "three"}, bad: true},
		{call: call{name: "three", inner: "do_three"}, bad: true},
		{call: call{name: "four", rare: true}},
		{call: call{name: "five", inner: "do_two"}, want: "do_two"},
		{call: call{name: "five"}, bad: true},
	} {
		got, err := c.place(kernel)
		if got != c.want || (err != nil) != c.bad || c.bad && !errors.Is(err, errPrograms) {
			t.Errorf("%+v: %q, %v", c.call, got, err)
		}
	}
}
