variable "project" {
  type        = string
  description = "Id of the project."
}

variable "region" {
  type        = string
  description = "Region of the workload."
}

variable "name" {
  type        = string
  description = "Name of the workload."
}

variable "image" {
  type        = string
  description = "Image that the first apply starts."
}

variable "account" {
  type        = string
  description = "Service account that the workload is, and nothing else is."
}

variable "env" {
  type        = map(string)
  description = "Environment of the agent."
}

variable "secrets" {
  type        = map(string)
  default     = {}
  description = "Variables that are filled from the newest version of a secret: variable => id of the secret."
}

variable "limits" {
  type        = map(string)
  description = "Limits of the container: cpu, memory, and nvidia.com/gpu with an accelerator."
}

variable "accelerator" {
  type        = string
  default     = null
  description = "Accelerator, such as nvidia-l4."
}

variable "labels" {
  type        = map(string)
  default     = {}
  description = "Labels of the workload."
}

variable "timeout" {
  type        = number
  description = "Longest task, in seconds. It is longer than the control plane's own limit, so that one side decides."
}
