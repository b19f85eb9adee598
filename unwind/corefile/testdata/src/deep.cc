// Templates, lambdas, virtual calls and exception tables: ends in abort() inside std::sort.
#include <algorithm>
#include <cstdlib>
#include <functional>
#include <vector>

namespace deep {
struct Base {
	virtual ~Base() {}
	virtual int go(int n) = 0;
};
struct Impl : Base {
	int go(int n) override;
};
__attribute__((noinline)) int Impl::go(int n)
{
	if (n == 0) {
		std::vector<int> v{3, 1, 2};
		std::sort(v.begin(), v.end(), [](int a, int b) {
			if (a == 1 || b == 1)
				abort();
			return a < b;
		});
		return v[0];
	}
	try {
		return go(n - 1) + 1;
	} catch (...) {
		return 0;
	}
}
} // namespace deep

template <typename F> __attribute__((noinline)) int call(F f, int n) { return f(n) + 1; }

int main(int argc, char **)
{
	deep::Impl a;
	std::function<int(int)> f = [&](int n) { return call([&](int m) { return a.go(m) + 1; }, n); };
	return f(3 + argc - 1);
}
