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

variable "worker_image" {
  type        = string
  description = "Image of the worker that takes messages for the agent."
}

variable "worker_env" {
  type        = map(string)
  description = "Environment of the worker."
}

variable "instances" {
  type        = number
  description = "Instances that the first apply starts; from then on the control plane sets how many there are."
}
