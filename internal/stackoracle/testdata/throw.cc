// A C++ program in a throw. The argument says where: "cleanup" in a destructor that the exception runs on its way,
// "terminate" in the handler of an exception that nobody catches, "catch" in the handler of one that is caught.
#include <cstring>
#include <exception>

#include "spot.h"

static const char *where;

struct Guard {
	NOINLINE ~Guard();
};

Guard::~Guard()
{
	if (std::strcmp(where, "cleanup") == 0)
		spot();
	STAY();
}

static NOINLINE void thrower(int n)
{
	STAY();
	throw n;
}

static NOINLINE int guarded(int n)
{
	Guard guard;
	thrower(n);
	STAY();
	return n;
}

static void NOINLINE ended()
{
	spot();
	STAY();
}

static NOINLINE int catcher(int n)
{
	try {
		return guarded(n);
	} catch (int caught) {
		spot();
		STAY();
		return caught;
	}
}

int main(int argc, char **argv)
{
	where = argc > 1 ? argv[1] : "";
	std::set_terminate(ended);
	if (std::strcmp(where, "terminate") == 0)
		guarded(argc);
	STAY();
	return catcher(argc);
}
