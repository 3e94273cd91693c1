// topology() for Python: what threads/topology.h reads.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/topology_py.h"
#include "threads/topology.h"

namespace py = pybind11;

namespace forearm {

void bind_topology(py::module_& module) {
  py::class_<Cpu>(module, "Cpu")
      .def_readonly("id", &Cpu::id)
      .def_readonly("core", &Cpu::core)
      .def_readonly("node", &Cpu::node)
      .def_readonly("speed", &Cpu::speed)
      .def_readonly("kind", &Cpu::kind);
  py::class_<Memory>(module, "Memory")
      .def_readonly("total_bytes", &Memory::total_bytes)
      .def_readonly("available_bytes", &Memory::available_bytes);
  py::class_<Topology>(module, "Topology")
      .def_readonly("cpus", &Topology::cpus)
      .def_readonly("memory_nodes", &Topology::memory_nodes)
      .def_readonly("node_memory", &Topology::node_memory)
      .def_readonly("quota_cpus", &Topology::quota_cpus)
      .def_readonly("machine", &Topology::machine)
      .def_readonly("cgroup", &Topology::cgroup);
  module.def("topology", &read_topology, py::arg("root") = "");
  module.def("parse_id_list", &parse_id_list, py::arg("text"));
}

}  // namespace forearm
