// A program with inlined calls of templates, namespaces, virtual functions, lambdas, exceptions and cold parts.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace outer {
namespace {
template <class T> struct Box { T v; int f(int n) const; };
template <class T> inline int helper(T x, int n) {
	int s = 0;
	for (int i = 0; i < n; i++)
		s += (int)x * i ^ s;
	return s;
}
template <class T> int Box<T>::f(int n) const { return helper(v, n) + helper(v + 1, n * 2); }
}
struct Base { virtual int go(int) = 0; virtual ~Base() {} };
struct Derived : Base {
	std::map<std::string, std::vector<int>> m;
	int go(int n) override {
		m[std::to_string(n)].push_back(n);
		auto &v = m.begin()->second;
		std::sort(v.begin(), v.end(), [](int a, int b) { return a > b; });
		if (v.size() > 100)
			throw std::runtime_error("too many");
		return Box<int>{n}.f(n) + Box<double>{1.5}.f(n);
	}
};
}

int main(int argc, char **argv) {
	outer::Derived d;
	outer::Base *b = &d;
	int s = 0;
	for (int i = 0; i < 10; i++)
		s += b->go(i + argc);
	std::function<int(int)> f = [&](int x) {
		try {
			return s + x + b->go(x);
		} catch (const std::exception &e) {
			puts(e.what());
			return 0;
		}
	};
	printf("%s %d\n", argv[0], f(3));
	return 0;
}
